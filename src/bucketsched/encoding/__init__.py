"""Bytes of what is stored and sent between nodes: protobuf messages of `bucketsched.internal.v1` from core types."""
