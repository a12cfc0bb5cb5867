"""An aiohttp server that reads a body and answers with forty bytes: what a gateway's HTTP alone costs."""

from __future__ import annotations

import argparse

import uvloop
from aiohttp import web


async def infer(request: web.Request) -> web.Response:
    """Read the body, answer with zeros."""
    await request.read()
    return web.Response(body=bytes(40), content_type="application/octet-stream")


async def ready(request: web.Request) -> web.Response:  # noqa: ARG001  # a handler's shape
    """Say that it serves."""
    return web.Response()


def main() -> None:
    """Read the port and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    uvloop.install()
    app = web.Application()
    app.router.add_post("/v2/models/{model}/infer", infer)
    app.router.add_get("/ready", ready)
    web.run_app(app, host="127.0.0.1", port=args.port, print=None, access_log=None)


if __name__ == "__main__":
    main()
