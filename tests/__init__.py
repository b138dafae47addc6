"""Tests of the service, its locks and its lab."""
