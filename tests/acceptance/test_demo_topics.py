"""`make demo-topics` in small: Java's records, both schemas, every answer compared."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import sys

import brokers
import pytest


@pytest.mark.timeout(400)
async def test_the_demo_scores_javas_records_while_their_schema_evolves(tmp_path):
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            brokers.lacking(f"{program} is not installed")
    for package in ("sklearn", "skl2onnx"):
        if importlib.util.find_spec(package) is None:
            brokers.lacking(f"{package} is not installed")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.demo_topics", "--times", "2"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
    )
    try:
        async with asyncio.timeout(380):
            printed = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, printed
    assert "1138 of 1138 records answered" in printed
    assert "0 not scikit-learn's own" in printed
    assert "schema gained a field after 569" in printed
    assert not list(tmp_path.iterdir())
