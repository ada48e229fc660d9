"""The ways in over gRPC: the public services (`bucketsched.v1`) and the one between nodes (`bucketsched.internal.v1`).

A servicer turns messages into core types, calls a use case of `bucketsched.service`, and turns the result back. Errors
become statuses in one place (`errors`); what can't be decoded is answered in one place (`rpc`).
"""
