"""Loads etcd, `etcd grpc-proxy` and the gateway in turn and compares them: `python -m bench`."""
