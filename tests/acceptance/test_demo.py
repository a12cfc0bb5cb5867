"""`make demo` in small: the real model, real files, records and HTTP, every answer compared."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

ROOTS = (Path(os.__file__).parent / "email", Path(__file__).resolve().parents[1] / "golden")

pytestmark = pytest.mark.embedded


async def test_the_demo_compares_every_answer_and_cleans_up_after_itself(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "160", "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.demo", "--files", "40"),
        *("--root", str(ROOTS[0]), "--root", str(ROOTS[1])),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    async with asyncio.timeout(110):
        printed, _ = await process.communicate()
    text = printed.decode()
    assert process.returncode == 0, text
    assert "All answers are Magika's own: of " in " ".join(text.split())
    assert "python" in text
    assert "latency p99" in text
    assert "POST /v2/models/magika/infer" in text
    assert not list(tmp_path.glob("headrace*")), "what it made is gone"
