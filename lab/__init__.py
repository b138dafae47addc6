"""Tries the service: servers, demonstrations, torture, and the model of the protocol. The service never needs it."""
