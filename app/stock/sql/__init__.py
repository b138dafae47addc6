"""The storage in SQL, through SQLAlchemy Core: MySQL, MariaDB and PostgreSQL, each with a small file of its own."""
