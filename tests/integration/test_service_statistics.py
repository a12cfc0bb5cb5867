"""A whole service's statistics over HTTP, beside its metrics: the same numbers, in nanoseconds (SEMANTICS §2.7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.schemas.batch import Batch
from headrace.schemas.errors import BackendError
from headrace.streams.memory import MemoryLog
from headrace.streams.topology import Topology
from service_kit import ScriptedBackend, Service, samples, serving, write_models

CONFIG = """
    backend: "scripted" max_batch_size: 4
    input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [1] }]
    output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }]
    dynamic_batching { max_queue_delay_microseconds: 200000 }"""


async def ask(service: Service, name: str, rows: int) -> int:
    body = {
        "id": name,
        "inputs": [
            {"name": "INPUT0", "datatype": "FP32", "shape": [rows, 1], "data": [1.0] * rows}
        ],
    }
    async with service.session.post("/v2/models/m/infer", json=body) as response:
        return response.status


async def item_of(service: Service, **counts: int) -> dict:
    """Wait until the fleet has been told of so many requests."""
    async with asyncio.timeout(20):
        while True:
            async with service.session.get("/v2/models/m/stats?workers=true") as response:
                (item,) = (await response.json())["model_stats"]
            figures = item["inference_stats"]
            if all(figures[name]["count"] == count for name, count in counts.items()):
                return item
            await asyncio.sleep(0.02)


async def test_ST02_ST05_KX11_statistics_and_metrics_tell_the_same(tmp_path: Path) -> None:
    """Two requests in one batch of four rows, then one that fails: each figure where Triton has it."""

    def play(batch: Batch) -> None:
        if any(entry is not None and entry.id == "bad" for entry in batch.entries):
            raise BackendError("broken")

    write_models(tmp_path, {"m": CONFIG})
    topology = Topology(prefix="s", partitions=2, reply_partitions=1)
    async with (
        MemoryLog() as log,
        serving(log, tmp_path, topology, find=ScriptedBackend(play)) as service,
    ):
        assert await asyncio.gather(ask(service, "a", 3), ask(service, "b", 1)) == [200, 200]
        assert await ask(service, "bad", 2) == 500
        item = await item_of(service, success=2, fail=1)
        assert (item["inference_count"], item["execution_count"]) == (4, 2)
        assert item["last_inference"] > 1_600_000_000_000
        figures = item["inference_stats"]
        assert {name: found["count"] for name, found in figures.items()} == {
            "success": 2,
            "fail": 1,
            "queue": 2,
            "compute_input": 2,
            "compute_infer": 2,
            "compute_output": 2,
            "cache_hit": 0,
            "cache_miss": 0,
        }
        assert figures["fail"]["ns"] > 0
        sizes = {batch["batch_size"]: batch["compute_infer"] for batch in item["batch_stats"]}
        assert {size: found["count"] for size, found in sizes.items()} == {2: 1, 4: 1}
        assert sizes[4]["ns"] * 2 == figures["compute_infer"]["ns"]
        (worker,) = item["workers"]
        assert worker == {"worker": "w1"} | {
            name: item[name] for name in item if name not in ("name", "version", "workers")
        }
        page = await service.page()
        for metric, field in (
            ("request", "success"),
            ("queue", "queue"),
            ("compute_input", "compute_input"),
            ("compute_infer", "compute_infer"),
            ("compute_output", "compute_output"),
        ):
            shown = samples(page, f"nv_inference_{metric}_duration_us", model="m")
            assert shown == figures[field]["ns"] // 1_000
