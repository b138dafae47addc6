"""Locks in ZooKeeper."""
