"""The protocol as a model that is small enough to be explored exhaustively: `seckill model`."""
