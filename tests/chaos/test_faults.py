"""The short form of `make chaos`: faults on three real brokers, under load, in each delivery mode.

DELIVERY P-1…P-13 and P-18 on a real cluster; FAULTS B7, B10, B13, B23, B97. Every test leaves the scene whole.
"""

from __future__ import annotations

import pytest
import pytest_asyncio
from chaos.disk import Unmountable
from chaos.faults import FAULTS, Fault
from chaos.play import played
from chaos.scene import PARTITIONS, SEQUENCES
from headrace.schemas.headers import find_header
from headrace.schemas.record import SOURCE, TP, Out
from headrace.streams.log import EARLIEST, LATEST, Mode, Span

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
]

# Each fault in one of the modes, and what the modes differ in in both; `make chaos` plays all in both.
AT_LEAST_ONCE = ("kill-worker", "kill-leader", "silence-network")
EXACTLY_ONCE = (
    *("kill-worker", "freeze-worker", "kill-coordinator", "cut-network", "kill-gateway"),
    "fill-disk",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chaos(request, three, tmp_path_factory):
    """Workers of a mode, with their judge; one mode after the other, for both want the same proxies."""
    cluster, disk = three
    small = None if isinstance(disk, Unmountable) else disk
    folder = tmp_path_factory.mktemp(str(request.param))
    async with played(cluster, request.param, folder, disk=small) as found:
        yield found


at_least_once = pytest.mark.parametrize(
    "chaos", [Mode.AT_LEAST_ONCE], indirect=True, scope="module"
)
exactly_once = pytest.mark.parametrize("chaos", [Mode.EXACTLY_ONCE], indirect=True, scope="module")


async def check(chaos, three, name):
    """Inject a fault and check that every promise of the mode is kept."""
    fault = FAULTS[name]
    if fault.needs_disk and isinstance(three[1], Unmountable):
        pytest.skip(str(three[1]))
    figures = await chaos.play(fault, fault.quick_times)
    assert not figures.broken(), figures
    assert figures.requests > 0
    assert figures.times == fault.quick_times


@at_least_once
@pytest.mark.parametrize("name", AT_LEAST_ONCE)
async def test_P1_P18_at_least_once_nothing_is_lost_and_repeats_are_equal(chaos, three, name):
    """And each step of a sequence is answered as if nothing had happened, in order."""
    await check(chaos, three, name)


@exactly_once
@pytest.mark.parametrize("name", EXACTLY_ONCE)
async def test_P1_P18_exactly_once_nothing_is_lost_twice_or_orphaned(chaos, three, name):
    """In the committed view; and each step of a sequence is answered as if nothing had happened, in order."""
    await check(chaos, three, name)
    assert await transactions(chaos.scene) > 0, "it is exactly_once by name only"


async def transactions(scene):
    """Count offsets of results that hold no answer: markers of transactions, and what was aborted."""
    tps = {TP(topic, number) for topic in scene.results() for number in range(PARTITIONS)}
    count = 0
    async with scene.log.reader({tp: Span(EARLIEST, LATEST) for tp in tps}) as reader:
        while not reader.done():
            count -= sum(len(block.records) for block in await reader.poll(5000, 1.0))
        return count + sum(reader.positions().values())


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


@at_least_once
async def test_the_judge_sees_what_is_planted(chaos):
    """Else its other verdicts would say nothing; the next stretch is clean again."""
    found = await chaos.play(Fault("plant", plant), 1)
    assert (found.lost, found.duplicated, found.different, found.orphaned) == (0, 2, 1, 1)
    assert found.wrong == 1
    assert not (await chaos.play(FAULTS["none"], 1)).broken()
