"""Makes the settle loop that a guarantee asks for, with the worker's settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.consumers.partition import Partition
from headrace.consumers.refused_replies import RefusedReplies
from headrace.consumers.settings import WorkerSettings
from headrace.consumers.settle import AtLeastOnceSettler, Settler
from headrace.consumers.settle_transactions import CutBounds, ExactlyOnceSettler, Transactions
from headrace.consumers.state_store import StateStore
from headrace.streams.log import Delivery, Mode, Outcome

CUT_SHARE = 2
"""Once one part in so many of what may be admitted is answered, most of it goes into transactions at once: else the
rest would be used up before the interval is over, and the instances stand still. What is left is many batches more."""


def make_settler(
    mode: Mode,
    delivery: Delivery,
    settings: WorkerSettings,
    *,
    on_lost: Callable[[Partition, Outcome], None],
    on_settled: Callable[[int], None],
    is_pointless: Callable[[], Awaitable[bool]],
    delivers: Callable[[Partition], bool],
    refused: RefusedReplies,
    store: StateStore[Any] | None,
    writes_ahead: bool,
    transactions: Transactions | None,
) -> Settler:
    """Make it.

    Args:
        mode: The guarantee.
        delivery: Of this guarantee.
        settings: Intervals and bounds.
        on_lost: See `Settler`.
        on_settled: See `Settler`.
        is_pointless: See `Settler`.
        delivers: See `AtLeastOnceSettler`.
        refused: See `Settler`.
        store: See `Settler`.
        writes_ahead: See `AtLeastOnceSettler`.
        transactions: See `ExactlyOnceSettler`.
    """
    if mode is Mode.EXACTLY_ONCE:
        return ExactlyOnceSettler(
            delivery,
            on_lost=on_lost,
            on_settled=on_settled,
            is_pointless=is_pointless,
            retry_s=settings.settle_retry_s,
            refused=refused,
            store=store,
            bounds=CutBounds(
                settings.transaction_interval_s,
                settings.max_queued_records // CUT_SHARE,
                settings.max_queued_bytes // CUT_SHARE,
            ),
            transactions=transactions,
        )
    return AtLeastOnceSettler(
        delivery,
        on_lost=on_lost,
        on_settled=on_settled,
        is_pointless=is_pointless,
        retry_s=settings.settle_retry_s,
        refused=refused,
        store=store,
        interval_s=settings.settle_interval_s,
        awaited_interval_s=settings.settle_awaited_interval_s,
        backlog_interval_s=settings.settle_backlog_interval_s,
        delivers=delivers,
        writes_ahead=writes_ahead,
    )
