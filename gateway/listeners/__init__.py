"""What clients and operators connect to: gRPC, JSON, admin."""
