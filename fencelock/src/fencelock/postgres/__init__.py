"""Locks in PostgreSQL."""
