"""What the `seckill` command does, besides serving."""
