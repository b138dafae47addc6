"""Locks in MySQL or MariaDB."""
