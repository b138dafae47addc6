"""Clients of servers that have no library that suits as it comes; for the locks, and for anybody else."""
