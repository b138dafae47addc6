"""`seckill cluster`: the sale on several hosts, which are network namespaces of this machine."""
