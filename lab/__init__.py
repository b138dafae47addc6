"""Servers, demonstrations, torture, and the model of the protocol, all to try the service, which never needs them."""

import os as _os

# What runs here is on loopback, and no proxy can reach it. This variable is heeded by urllib, httpx, requests and gRPC,
# here and in what is started from here.
_given = _os.environ.get("no_proxy") or _os.environ.get("NO_PROXY") or ""
if _given != "*" and "127.0.0.1" not in _given:
    _os.environ["no_proxy"] = ",".join(filter(None, (_given, "127.0.0.1,localhost,::1")))
