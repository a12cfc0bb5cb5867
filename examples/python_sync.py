"""Asks models by records from a program without an event loop: python examples/python_sync.py."""

import os

from headrace.streams.client import SyncClient

with SyncClient(
    os.environ.get("HEADRACE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"), timeout_s=30
) as client:
    print("infer", client.infer("echo", {"x": [[1.5, 2.5]]})["y"].tolist())
    for answer in client.stream("each", {"x": [[5, 6]]}):
        print("stream", answer["y"].item())
    with client.sequence("total") as steps:
        for value in (1, 2, 3):
            print("sequence", steps.infer({"x": [[value]]})["sum"].item())
