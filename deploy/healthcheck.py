"""Exits 0 if the node at host:port says over gRPC's health protocol that it serves, else 1 with the reason."""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3


def main() -> int:
    """Asks once."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}")
            return 1
    state = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    print(state)
    return 0 if state == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())
