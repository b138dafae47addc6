"""The stock in Redis or Valkey."""
