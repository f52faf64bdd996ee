"""Connections to the etcd clusters."""
