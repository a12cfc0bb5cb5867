"""The short form of `make chaos`: faults on three real brokers, under load, in each delivery mode.

DELIVERY P-1…P-13 and P-18 on a real cluster; FAULTS B7, B10, B13, B23, B97. Every test leaves the scene whole.
"""

from __future__ import annotations

import pytest
import pytest_asyncio
from chaos.disk import Unmountable
from chaos.faults import FAULTS, Fault
from chaos.play import played
from chaos.scene import SEQUENCES, has_modes
from headrace.schemas.headers import find_header
from headrace.schemas.record import SOURCE, TP, Out
from headrace.streams.log import EARLIEST, LATEST, Mode, Span

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

SHORT = (
    *("none", "kill-worker", "freeze-worker", "kill-leader", "kill-coordinator"),
    *("cut-network", "silence-network", "kill-gateway", "fill-disk"),
)
MODES = [
    Mode.AT_LEAST_ONCE,
    pytest.param(
        Mode.EXACTLY_ONCE,
        marks=pytest.mark.skipif(not has_modes(), reason="workers have no --delivery yet"),
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MODES)
async def chaos(request, three, tmp_path_factory):
    """Workers of one mode, with their judge."""
    cluster, disk = three
    small = None if isinstance(disk, Unmountable) else disk
    folder = tmp_path_factory.mktemp(str(request.param))
    async with played(cluster, request.param, folder, disk=small) as found:
        yield found


@pytest.mark.parametrize("name", SHORT)
async def test_P1_P18_every_request_is_answered_as_undisturbed(chaos, three, name):
    """Nothing lost, nothing orphaned, nothing twice in exactly_once, and each step as if nothing had happened."""
    fault = FAULTS[name]
    if fault.needs_disk and isinstance(three[1], Unmountable):
        pytest.skip(str(three[1]))
    figures = await chaos.play(fault, fault.quick_times)
    assert not figures.broken(), figures
    assert figures.requests > 0
    assert figures.times == fault.quick_times


async def plant(scene, time):
    """Publish what a broken worker would: an answer once more, once with another value, and one to nothing."""
    tp = TP(scene.topology.results(SEQUENCES), 0)
    async with scene.log.reader({tp: Span(EARLIEST, LATEST)}) as reader:
        found = []
        while not reader.done():
            found += [record for block in await reader.poll(5000, 1.0) for record in block.records]
    *_, first, second = found
    source = find_header(first.headers, SOURCE).rpartition(b"/")[0]
    others = [header for header in first.headers if header[0] != SOURCE]
    outs = [
        Out(*tp, first.key, first.value, first.headers),
        Out(*tp, second.key, first.value, second.headers),
        Out(*tp, None, first.value, [*others, (SOURCE, source + b"/1000000")]),
    ]
    async with scene.log.publisher() as publisher:
        await publisher.publish(outs)


async def test_the_judge_sees_what_is_planted(chaos):
    """Else its other verdicts would say nothing; the next stretch is clean again."""
    found = await chaos.play(Fault("plant", plant), 1)
    assert (found.lost, found.duplicated, found.different, found.orphaned) == (0, 2, 1, 1)
    assert found.wrong == 1
    assert not (await chaos.play(FAULTS["none"], 1)).broken()
