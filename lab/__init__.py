"""Servers, demonstrations, torture, and the model of the protocol, all to try the service, which never needs them."""

import os as _os

# The servers here are on loopback, where no proxy can reach them. urllib, httpx, requests and gRPC heed this variable,
# here and in child processes.
_given = _os.environ.get("no_proxy") or _os.environ.get("NO_PROXY") or ""
if _given != "*" and "127.0.0.1" not in _given:
    _os.environ["no_proxy"] = ",".join(filter(None, (_given, "127.0.0.1,localhost,::1")))
