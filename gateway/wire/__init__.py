"""Sans-IO HTTP/2 and gRPC framing, both roles."""
