// The requirements of etcd are in v3_6.mod and v3_7.mod: see etcd_server in builds.py.
module seckill/etcd

go 1.26.0
