"""Asks models by records from an asyncio program: python examples/python_async.py."""

import asyncio
import os

import numpy as np
from headrace.schemas.errors import InferError
from headrace.streams.client import Client


async def main() -> None:
    async with Client(
        os.environ.get("HEADRACE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"), timeout_s=30
    ) as client:
        # Many at once: they are batched by the worker. At most max_in_flight are open.
        rows = [np.full((1, 3), n, np.float32) for n in range(4)]
        answers = await asyncio.gather(*(client.infer("echo", {"x": row}) for row in rows))
        print("infer", [answer["y"].tolist() for answer in answers])

        # A decoupled model: answers as they come, until the final one.
        async for answer in client.stream("each", {"x": [[5, 6, 7]]}):
            print("stream", answer["y"].item(), "final" if answer.final else "")

        # START with the first step, END with the block's end or with end=True, whatever happens between.
        async with client.sequence("total") as steps:
            print("sequence", (await steps.infer({"x": [[1]]}))["sum"].item())
            print("sequence", (await steps.infer({"x": [[2]]}, end=True))["sum"].item())

        # Written now, read elsewhere: here by this program. What comes twice is dropped.
        async with client.results("echo") as results:
            await client.send("echo", {"x": [[8]]}, id="later")
            async for result in results:
                print("result", result.source, result.answer()["y"].item())
                break

        # Errors have kinds, a code and a stable reason.
        try:
            await client.infer("ecko", {"x": [[1]]})
        except InferError as error:
            print("error", error.code, error.reason, error)


asyncio.run(main())
