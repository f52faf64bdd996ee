"""The wire format of the etcd v3 API: our own .proto and what protoc makes of it.

After a change of a .proto, from the repository's root (an old protoc, so that protobuf >= 5.29 can load the result):

    pip install 'grpcio-tools==1.71.*'
    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. gateway/etcdpb/*.proto
    sed -i 's/^from google.protobuf import descriptor_pool /from gateway.etcdpb import pool /' gateway/etcdpb/*_pb2.py
    sed -i '1i # mypy: ignore-errors' gateway/etcdpb/*_pb2.pyi
"""
