"""The etcd RPCs: each service method decides and acts."""
