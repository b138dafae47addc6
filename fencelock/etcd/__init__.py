"""Locks, elections and sessions in etcd."""
