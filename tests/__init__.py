"""Test the service, its locks and its lab."""
