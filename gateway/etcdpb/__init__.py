"""The wire format of the etcd v3 API: our own .proto and what protoc makes of it (`make proto`)."""
