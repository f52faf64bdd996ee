"""A descriptor pool of the gateway's own: the default one takes each message name once, and a program that also loads
another etcd client's copy of these files (or a test that does) must still work."""

from google.protobuf.descriptor_pool import DescriptorPool

_OWN = DescriptorPool()


def Default() -> DescriptorPool:
    """Named as in google.protobuf.descriptor_pool, in whose place the generated modules call it."""
    return _OWN
