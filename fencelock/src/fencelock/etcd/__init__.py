"""Locks, elections and sessions in etcd."""

import os

# gRPC's own fork handlers abort some children of a process that uses it; ours raise errors (`endpoint.use_grpc`).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
