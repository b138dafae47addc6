"""Locks in Redis or Valkey."""
