"""The stock in MySQL or MariaDB."""
