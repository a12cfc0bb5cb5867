"""What executions of a decoupled model emit while they run, and what cancels tell them."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
from headrace.consumers.emitting import MAX_AHEAD, Emitting, Unacknowledged
from headrace.consumers.execution import Ticket
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.schemas.batch import Batch, Responses
from headrace.schemas.record import TP
from service_parts import make_entry, make_signature

SIGNATURE = make_signature()


def batch(count: int = 1) -> Batch:
    return Batch(SIGNATURE, [make_entry(offset=i) for i in range(count)])


def response(*, final: bool = False) -> Responses:
    return Responses({"OUTPUT0": np.ones((1, 2), np.float32)}, final=final)


class Told:
    """Notes what leaves, and keeps the releases."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.releases = []

    def __call__(self, _batch, parts, release) -> None:
        self.indices += [index for _, index in parts]
        self.releases.append(release)


async def test_an_execution_waits_when_it_is_too_far_ahead_of_the_log() -> None:
    """Its thread is held at the bound, and goes on with each acknowledgement."""
    told, entries = Told(), batch()
    heard = Emitting(told).begin(entries, None)
    assert heard is not None
    emitted = threading.Semaphore(0)

    def run() -> None:
        for turn in range(MAX_AHEAD + 2):
            heard(entries, response(final=turn == MAX_AHEAD + 1))
            emitted.release()

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(MAX_AHEAD):
        await asyncio.to_thread(emitted.acquire)
    await asyncio.sleep(0)
    assert told.indices == list(range(MAX_AHEAD))
    assert not emitted.acquire(blocking=False)
    for release in told.releases[:2]:
        release()
    await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)
    assert told.indices == list(range(MAX_AHEAD + 2))


async def test_what_an_execution_emits_that_was_given_up_is_not_heard() -> None:
    """Its requests may be running again; nor is what comes behind its end."""
    told, entries, ticket = Told(), batch(), Ticket()
    emitting = Emitting(told)
    heard = emitting.begin(entries, ticket)
    assert heard is not None
    heard(entries, response())
    await asyncio.sleep(0)
    ticket.void()
    heard(entries, response())
    await asyncio.sleep(0)
    emitting.end(entries)
    heard(entries, response())
    await asyncio.sleep(0)
    assert told.indices == [0]


async def test_what_a_plug_in_emits_that_is_no_response_does_no_harm() -> None:
    """The execution's end says what is wrong with it."""
    told, entries = Told(), batch()
    heard = Emitting(told).begin(entries, None)
    assert heard is not None
    for _ in range(MAX_AHEAD + 1):  # nor does it take any room
        heard(entries, "nonsense")  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert told.indices == []


async def test_CX01_a_cancel_reaches_those_that_run_and_nobody_else() -> None:
    """Also where responses are kept until the end, as in exactly_once."""
    emitting = Emitting(None)
    running, over = batch(2), batch()
    for number, entry in enumerate((*running.entries, *over.entries)):
        entry.correlation_id = b"%d" % number
    assert emitting.begin(running, None) is None
    emitting.begin(over, None)
    emitting.end(over)
    emitting.cancel({b"1", b"2"})
    assert [entry.is_cancelled for entry in running.entries] == [False, True]
    assert not over.entries[0].is_cancelled


def test_room_is_given_back_with_the_settle_that_came_behind_or_with_the_partition() -> None:
    """A settle that is under way does not hold what was put since."""
    parts = [Partition(TP("t", n), 1, 1, OffsetLedger()) for n in range(2)]
    ours = {part.tp: part for part in parts}
    released: list[str] = []
    unacknowledged = Unacknowledged()
    parts[0].settles_begun = 1  # under way
    unacknowledged.add({parts[0]}, lambda: released.append("first"))
    unacknowledged.add(set(parts), lambda: released.append("both"))
    unacknowledged.add(set(), lambda: released.append("none"))
    parts[0].settles_ended = 1
    unacknowledged.settled(ours)
    assert released == ["none"]
    parts[0].settles_begun = parts[0].settles_ended = 2
    unacknowledged.settled(ours)
    assert released == ["none", "first"]
    del ours[parts[1].tp]
    unacknowledged.settled(ours)
    assert released == ["none", "first", "both"]
