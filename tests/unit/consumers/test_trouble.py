"""Readiness says steadily what a membership met that will meet it again (B58)."""

from __future__ import annotations

from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.trouble import CALM_S, Trouble
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP


class Seconds:
    """A clock that only moves when told."""

    at = 100.0

    def __call__(self) -> float:
        return self.at


def failed(*, retriable: bool) -> tuple[Trouble, Partition, Seconds]:
    """A trouble behind a membership that has failed, the partition that it has again, and the clock."""
    now = Seconds()
    trouble = Trouble("not joined yet", now)
    trouble.joined()
    assert trouble.text == ""
    trouble.failed(LogError("no right", retriable=retriable))
    trouble.left()
    part = Partition(TP("t", 0), 1, 1, OffsetLedger())
    part.active = True
    return trouble, part, now


def test_B58_what_lasts_is_shown_until_something_is_settled() -> None:
    """Neither a new membership ends it, nor a transaction that has only begun."""
    trouble, part, _ = failed(retriable=False)
    for _ in range(3):
        trouble.joined()
        assert trouble.text == "the log failed: no right"
        trouble.look([part])
        part.in_flight = part.settling = 1
        trouble.settled([part])
        assert trouble.text == "the log failed: no right"
        trouble.failed(LogError("no right", retriable=False))
        trouble.left()
    trouble.joined()
    part.in_flight = part.settling = 0
    trouble.settled([part])
    assert trouble.text == ""


def test_B58_what_lasts_ends_where_nothing_is_left_to_meet_it() -> None:
    """Its records are gone, say; not while they are on their way, or a partition is taken over."""
    trouble, part, now = failed(retriable=False)
    now.at += 10 * CALM_S
    trouble.look([part])
    assert trouble.text, "it has not joined"
    trouble.joined()
    now.at += CALM_S
    part.active = False
    trouble.look([part])
    part.active, part.in_flight = True, 1
    trouble.look([part])
    assert trouble.text
    part.in_flight = 0
    trouble.look([part])
    assert trouble.text == ""


def test_what_passes_ends_with_the_next_membership() -> None:
    """A broker that was away, say."""
    trouble, _, _ = failed(retriable=True)
    assert trouble.text == "the log failed: no right"
    trouble.joined()
    assert trouble.text == ""
