"""Redriving: what is refused and why, where requests go, what marks say after each kind of failure."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from headrace.schemas.dead_letter import Redrive, RedriveState, write_dead_letter
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP
from headrace.streams import dead_letter_redrive
from headrace.streams.dead_letter_redrive import plan, redrive
from headrace.streams.dead_letter_topic import Selection, find_letters, row_of
from headrace.streams.memory import MemoryLog
from headrace.streams.memory_partition import MemoryRecord
from letter_kit import (
    DEAD,
    NO_LIMIT,
    REQUESTS,
    letter,
    make_topics,
    options,
    put,
    records,
    stored,
)

TOPICS = {REQUESTS: 4, DEAD: 2}


def row(one, redrive_mark=None, limit=NO_LIMIT):
    out = write_dead_letter(one, TP(DEAD, 0), limit)
    record = MemoryRecord(DEAD, 0, 8, 1, out.key, out.value, tuple(out.headers))
    return replace(row_of(record), redrive=redrive_mark)


SENT, BEGUN = (Redrive(8, state, 2) for state in (RedriveState.SENT, RedriveState.BEGUN))


@pytest.mark.parametrize(
    ("made", "more", "refusal"),
    [
        (lambda: row(letter(5)), {}, ""),
        (lambda: row(letter(5), SENT), {}, "it was redriven already, expected --again"),
        (lambda: row(letter(5), SENT), {"again": True}, ""),
        (lambda: row(letter(5), BEGUN), {}, "a redrive that did not end may have sent it"),
        (lambda: row(letter(5), BEGUN), {"again": True}, ""),
        (
            lambda: row(letter(5, value=b"v" * 900), limit=1_000),
            {},
            "it is not kept whole, expected its original: t.m.requests/0/5, if that is still there",
        ),
        (
            lambda: row(letter(5, topic="gone")),
            {},
            "topic gone does not exist, expected the topic that it came from",
        ),
        (
            lambda: row(letter(5, partition=4)),
            {},
            "topic t.m.requests has 4 partitions, expected partition 4 that it came from",
        ),
        (lambda: row(letter(5, key=None, value=None)), {}, "it has neither key nor value"),
        (lambda: row(letter(5, key=None)), {}, ""),
        (lambda: row(letter(5, value=None)), {}, ""),
        (
            lambda: row(letter(5, value=bytes(900))),
            {"max_record_bytes": 1_000},
            "expected at most 961 (max.request.size)",
        ),
        (
            lambda: row(letter(5, headers=(("deadline-ms", b"999"),))),
            {"now_ms": 5_999},
            (
                "its deadline-ms passed 5 s ago and it would be answered deadline_passed, "
                "expected --drop-deadline"
            ),
        ),
        (
            lambda: row(letter(5, headers=(("deadline-ms", b"999"),))),
            {"now_ms": 5_999, "without_deadline": True},
            "",
        ),
        (lambda: row(letter(5, headers=(("deadline-ms", b"6000"),))), {"now_ms": 5_999}, ""),
        (lambda: row(letter(5, headers=(("deadline-ms", b"soon"),))), {"now_ms": 5_999}, ""),
    ],
)
def test_a_letter_that_cannot_be_sent_is_refused_with_a_sentence(made, more, refusal):
    (one,) = plan([made()], TOPICS, options(**more))
    assert refusal in one.refusal
    assert bool(refusal) == bool(one.refusal)


def test_the_attempt_is_one_more_than_was_made():
    """A letter that is sent again and again counts on from its last mark."""
    once, twice = (
        row(letter(attempts=4)),
        row(letter(attempts=4), Redrive(8, RedriveState.SENT, 5)),
    )
    assert [one.attempt for one in plan([once, twice], TOPICS, options(again=True))] == [5, 6]


class FailingLog(MemoryLog):
    """A log of which one publish fails, after its records were written or before.

    Attributes:
        fail_at: Publishes that succeed first; None never fails.
        published: How many records each publish had.
    """

    def __init__(self, fail_at=None, *, written=False):
        super().__init__()
        self.fail_at = fail_at
        self.written = written
        self.published = []

    async def produce(self, outs):
        if self.fail_at == len(self.published):
            self.fail_at = None
            self.fail_produce(written=self.written)
        else:
            self.published.append(len(outs))
        await super().produce(outs)


LETTERS = [
    stored(letter(n, partition=n % 2, headers=(("id", b"%d" % n), ("attempt", b"1"))), n % 2)
    for n in range(5)
]


async def run(log, **more):
    """Redrive everything there is; returns the batches that were reported, by id."""
    told = []
    found = await find_letters(log, DEAD, Selection())
    planned = plan(found.oldest(100), await log.topics(), options(**more))
    await redrive(
        *(log, DEAD, planned, options(**more)),
        lambda batch: told.append([str(one.row.id) for one in batch]),
    )
    return told


async def states(log):
    return {
        str(row.id): row.state.value for row in (await find_letters(log, DEAD, Selection())).rows
    }


async def test_requests_go_where_they_came_from_with_key_headers_and_a_raised_attempt():
    """In the order of their letters, and each letter is marked."""
    async with FailingLog() as log:
        await make_topics(log)
        await put(log, *LETTERS)
        (told,) = await run(log)
        assert sorted(told) == ["0/0", "0/1", "0/2", "1/0", "1/1"]
        sent = await records(log, REQUESTS)
        assert [(r.partition, r.key, r.value) for r in sent] == [
            (n % 2, b"k%d" % n, b"value %d" % n) for n in (0, 2, 4, 1, 3)
        ]
        assert [r.headers for r in sent] == [
            [("id", b"%d" % n), ("attempt", b"2")] for n in (0, 2, 4, 1, 3)
        ]
        assert set((await states(log)).values()) == {"redriven"}
        assert await run(log) == []  # a second time nothing is sent
        assert len(await records(log, REQUESTS)) == 5
        await run(log, again=True)
        again = (await records(log, REQUESTS))[3:6]
        assert [dict(r.headers)["attempt"] for r in again] == [b"3"] * 3


async def test_batches_are_bounded_in_letters_and_bytes(monkeypatch):
    monkeypatch.setattr(dead_letter_redrive, "BATCH_LETTERS", 2)
    async with FailingLog() as log:
        await make_topics(log)
        await put(log, *LETTERS)
        told = await run(log)
        assert [len(batch) for batch in told] == [2, 2, 1]
        assert log.published == [5, 2, 2, 2, 2, 2, 2, 1, 1, 1]
    monkeypatch.setattr(dead_letter_redrive, "BATCH_BYTES", 1)  # each is larger: one by one
    async with FailingLog() as log:
        await make_topics(log)
        await put(log, *LETTERS)
        assert [len(batch) for batch in await run(log)] == [1] * 5


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_redrive_that_fails_leaves_its_batch_in_doubt_and_the_rest_untouched(
    monkeypatch, step, written
):
    """Whatever was acknowledged: nothing is silently sent twice, and nothing is called sent that may not be."""
    monkeypatch.setattr(dead_letter_redrive, "BATCH_LETTERS", 2)
    async with FailingLog(fail_at=1 + 3 + step, written=written) as log:  # in the second batch
        await make_topics(log)
        await put(log, *LETTERS)
        with pytest.raises(LogError, match="injected"):
            await run(log)
        became = sorted((await states(log)).values())
        sent = len(await records(log, REQUESTS))
        if (step, written) == (0, False):  # not even the marks were written
            assert became == ["pending"] * 3 + ["redriven"] * 2
        elif (step, written) == (2, True):  # only the acknowledgement was lost
            assert became == ["pending"] + ["redriven"] * 4
        else:
            assert became == ["in-doubt"] * 2 + ["pending"] + ["redriven"] * 2
        assert sent == 2 + 2 * (step == 2 or (step == 1 and written))
        # The next run sends what is pending and nothing of what may have been sent.
        pending = became.count("pending")
        await run(log)
        assert len(await records(log, REQUESTS)) == sent + pending
        assert sorted((await states(log)).values()).count("in-doubt") == became.count("in-doubt")


async def test_a_letter_that_retention_takes_meanwhile_is_not_reported_as_sent():
    async with MemoryLog() as log:
        await make_topics(log)
        await put(log, *LETTERS)
        found = await find_letters(log, DEAD, Selection())
        planned = plan(found.oldest(100), await log.topics(), options())
        log.existing(TP(DEAD, 0)).trim(2)
        told = []
        await redrive(log, DEAD, planned, options(), told.extend)
        assert sorted(str(one.row.id) for one in told) == ["0/2", "1/0", "1/1"]
        assert len(await records(log, REQUESTS)) == 3


async def test_two_redrives_at_the_same_time_send_each_letter_once(monkeypatch):
    """Whichever comes first at each; what the other has sent is not in doubt."""
    monkeypatch.setattr(dead_letter_redrive, "BATCH_LETTERS", 2)
    async with MemoryLog() as log:
        await make_topics(log)
        await put(log, *LETTERS)
        reports = await asyncio.gather(*(run(log) for _ in range(3)))
        sent = [found for told in reports for batch in told for found in batch]
        assert sorted(sent) == ["0/0", "0/1", "0/2", "1/0", "1/1"]
        assert len(await records(log, REQUESTS)) == 5
        assert set((await states(log)).values()) == {"redriven"}


async def test_a_redrive_that_was_planned_before_another_has_sent_sends_nothing():
    """It begins when the other has ended: its own marks come last, and say nothing wrong."""
    async with MemoryLog() as log:
        await make_topics(log)
        await put(log, *LETTERS)
        found = await find_letters(log, DEAD, Selection())
        planned = plan(found.oldest(100), await log.topics(), options())
        await run(log)
        told = []
        await redrive(log, DEAD, planned, options(), told.extend)
        assert told == []
        assert len(await records(log, REQUESTS)) == 5
        assert set((await states(log)).values()) == {"redriven"}
