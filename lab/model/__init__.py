"""The protocol as a model that is small enough to be explored to the last state: `seckill model`."""
