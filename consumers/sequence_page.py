"""What there is to show of a worker's live sequences."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.consumers.live_sequence import NO_SLOT
from headrace.consumers.sequence_batcher import SequenceBatcher
from headrace.consumers.sequences import Sequences
from headrace.streams.sequence_list import (
    BACKLOG,
    IDLE,
    NO_INSTANCE,
    SequencePage,
    SequenceRow,
    slot_name,
)


def sequence_page(
    sequences: Sequences,
    batchers: Mapping[int, SequenceBatcher],
    now_ms: int,
    *,
    limit: int,
    worker: str,
) -> SequencePage:
    """Return the most recently active live sequences.

    Args:
        sequences: All of a model's.
        batchers: Each version's.
        now_ms: Ms since the epoch.
        limit: Rows at most.
        worker: Who has them.
    """
    rows = []
    for lane in sequences.recent(limit):
        place, instance = IDLE, NO_INSTANCE
        if lane.slot != NO_SLOT:
            instance, row = batchers[lane.home].place(lane)
            place = slot_name(row)
        elif not lane.is_idle:
            place = BACKLOG
        rows.append(
            SequenceRow(
                lane.sequence_id,
                lane.tp.partition,
                place,
                instance,
                0 if lane.state is None else lane.state.steps,
                max(0, now_ms - lane.timestamp_ms),
                lane.version,
                worker,
            )
        )
    rows.sort(key=lambda row: row.idle_ms)
    return SequencePage(tuple(rows), len(sequences))
