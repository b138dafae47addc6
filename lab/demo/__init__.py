"""The work of the `seckill` command, besides serving."""
