"""shardgate: an etcd v3 gateway that routes each key prefix to its own etcd cluster."""
