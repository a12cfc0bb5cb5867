"""A grpc.aio server whose ModelInfer answers with forty bytes: what a gateway's gRPC alone costs."""

from __future__ import annotations

import argparse
import asyncio

import grpc.aio
import uvloop
from tritonclient.grpc import service_pb2, service_pb2_grpc


class Empty(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers with zeros."""

    async def ModelInfer(self, request, context):  # noqa: N802, ARG002  # the service's name, a handler's shape
        return service_pb2.ModelInferResponse(raw_output_contents=[bytes(40)])


async def serve(port: int) -> None:
    """Serve until the process ends."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Empty(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await asyncio.Event().wait()


def main() -> None:
    """Read the port and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    uvloop.run(serve(args.port))


if __name__ == "__main__":
    main()
