"""Servers, demonstrations, torture, and the model of the protocol, all to try the service, which never needs them."""
