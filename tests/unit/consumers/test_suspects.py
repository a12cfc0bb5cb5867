"""What of a suspect is fetched and shown to the decoder, by how it ended its process before (DELIVERY P-14)."""

from __future__ import annotations

import pytest
from headrace.consumers.ledger import OffsetLedger
from headrace.consumers.partition import Partition
from headrace.consumers.settings import WorkerSettings
from headrace.consumers.suspects import Suspects, Trying
from headrace.schemas.record import TP
from service_parts import PlainRecord

SETTINGS = WorkerSettings("w", max_crashes=2)


@pytest.mark.parametrize(
    ("deaths", "unread", "is_fetched", "is_shown"),
    [
        (0, False, True, True),
        (1, False, True, True),
        (2, False, False, True),
        (2, True, False, False),
    ],
)
def test_P14_a_value_in_a_store_is_fetched_unless_its_record_is_given_up(
    deaths: int, unread: bool, is_fetched: bool, is_shown: bool
):
    """It may have died while it was read, or while it ran: no time is spent on what is not run any more."""
    part, record = Partition(TP("t", 0), 1, 1, OffsetLedger()), PlainRecord(offset=3, value=b"v")
    suspects = Suspects(None, {}, SETTINGS, None, bool)
    assert not suspects.reads(part)
    suspects._trying[part] = Trying(record, deaths, unread)
    assert suspects.reads(part) is is_fetched
    (shown,) = suspects.shown(part, [record])
    assert shown.value == (b"v" if is_shown else None)
