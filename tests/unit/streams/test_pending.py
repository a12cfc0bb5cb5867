"""The table of open calls, on a hand-moved clock."""

import random

import pytest
from headrace.schemas.errors import Code, Unavailable
from headrace.streams.pending import Pending


def test_a_reply_closes_its_call_once():
    pending = Pending[str]()
    first, second = pending.add("a", 10), pending.add("b", 10)
    assert first != second
    assert len(first) == 16
    assert pending.take(second) == "b"
    assert pending.take(second) is None
    assert (len(pending), pending.late, pending.foreign) == (1, 1, 0)


def test_B63_calls_expire_by_their_own_deadline_and_late_replies_are_counted():
    """FAULTS B63: 200 ms and 5 s at once; the first expires alone and its reply comes late."""
    pending = Pending[str]()
    ms = 1_000_000
    short = pending.add("short", 200 * ms)
    pending.add("long", 5_000 * ms)
    assert pending.wake_at() == 200 * ms
    assert pending.expire(199 * ms) == []
    assert pending.expire(200 * ms) == ["short"]
    assert pending.take(short) is None
    assert pending.late == 1
    assert pending.wake_at() == 5_000 * ms
    assert pending.expire(5_000 * ms) == ["long"]
    assert (len(pending), pending.wake_at()) == (0, None)


def test_another_gateways_reply_is_told_by_its_prefix():
    mine, other = Pending[int](), Pending[int]()
    assert mine.take(other.add(1, 5)) is None
    assert mine.take(b"") is None
    assert (mine.foreign, mine.late) == (2, 0)


def test_the_table_is_bounded_and_says_so():
    pending = Pending[int](max_pending=2)
    first = pending.add(1, 5)
    pending.add(2, 5)
    with pytest.raises(Unavailable, match="at most 2") as caught:
        pending.add(3, 5)
    assert (caught.value.code, caught.value.retriable) == (Code.UNAVAILABLE, True)
    assert pending.discard(first)
    assert not pending.discard(first)
    pending.add(3, 5)


def test_close_returns_everybody_who_waits():
    pending = Pending[int]()
    pending.add(1, 9)
    pending.add(2, 3)
    assert pending.close() == [1, 2]
    assert len(pending) == 0
    assert pending.wake_at() is None


def test_B101_the_table_and_its_heap_return_to_nothing_after_20000_mixed_calls():
    """FAULTS B101: answered, discarded, expired and late in any order; nothing stays behind."""
    rng = random.Random(7)
    pending = Pending[int]()
    now, open_ids, ended = 0, [], 0
    for number in range(20_000):
        open_ids.append(pending.add(number, now + rng.randrange(1, 400)))
        now += rng.randrange(3)
        ended += len(pending.expire(now))
        for _ in range(rng.randrange(3)):
            if open_ids:
                correlation_id = open_ids.pop(rng.randrange(len(open_ids)))
                if rng.random() < 0.5:
                    ended += pending.take(correlation_id) is not None
                else:
                    ended += pending.discard(correlation_id)
        assert len(pending._deadlines) <= 2 * len(pending) + 65
        wake_at = pending.wake_at()
        assert wake_at is None or wake_at > now
    ended += len(pending.expire(now + 1_000))
    assert ended == 20_000
    assert len(pending) == 0
    assert pending._deadlines == []


def test_B63_a_call_of_many_replies_stays_until_it_is_discarded_or_expires():
    """Its replies are none that come late; behind its end they are, and nothing is left of it."""
    pending = Pending[str](max_pending=3)
    many, other = pending.add("many", 10, stays=True), pending.add("other", 30, stays=True)
    one = pending.add("one", 20)
    with pytest.raises(Unavailable, match="3 calls are open, expected at most 3"):
        pending.add("above", 10)
    assert [pending.take(many), pending.take(many), pending.take(one)] == ["many", "many", "one"]
    assert (len(pending), pending.late, pending.wake_at()) == (2, 0, 10)
    assert pending.expire(10) == ["many"]
    assert pending.take(many) is None
    assert pending.discard(other)
    assert not pending.discard(other)
    assert (len(pending), pending.late, pending.wake_at()) == (0, 1, None)
    pending.add("last", 9, stays=True)
    assert pending.close() == ["last"]


def test_the_deadlines_of_calls_that_stay_outlive_those_of_many_others():
    """The heap is rebuilt when most of it is over; who is open must still expire."""
    pending = Pending[int]()
    pending.add(-1, 1_000, stays=True)
    for number in range(500):
        pending.discard(pending.add(number, number))
    assert len(pending._deadlines) < 100
    assert pending.expire(1_000) == [-1]
