"""The committed positions of partitions that are taken over: read, marked, and confirmed (DELIVERY P-5, P-14)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set

from headrace.consumers.attempts import Marks
from headrace.consumers.partition import Partition
from headrace.schemas.record import TP
from headrace.streams.log import Mode, Position, Source

logger = logging.getLogger(__name__)


async def read_positions(
    source: Source, parts: Sequence[Partition], marks: Marks | None, *, from_end: bool
) -> Mapping[TP, Position]:
    """Read committed positions, F included, into the ledgers (P-1); the beginning where there is none.

    Args:
        source: Whose group it is.
        parts: Being taken over.
        marks: What this process says of attempts; None where the log would not keep it.
        from_end: Where nothing was ever committed, the end is it: a topic of other people's may have years of records.

    Returns:
        What is to be confirmed: the positions as they were read, and marked where the partition's ledger has a mark.
    """
    if not parts:
        return {}
    tps = {part.tp for part in parts}
    committed = await source.committed(tps)
    ends = await source.end_offsets(tps)
    found: dict[TP, Position] = {}
    unread = {tp for tp in tps if committed[tp] is None} if from_end else frozenset[TP]()
    for part in parts:
        tp, position = part.tp, committed[part.tp]
        if position is not None and position.offset > ends[tp]:
            logger.warning(
                "%s/%d ends before its committed offset %d, it was made again or cut: read from its beginning",
                *tp,
                position.offset,
            )
            position = None
        if position is not None:
            found[tp] = position
            warning = part.ledger.restore(position)
            if warning:
                logger.warning("%s/%d: %s", tp.topic, tp.partition, warning)
    fresh = tps - found.keys()
    first = dict(await source.beginning_offsets(fresh)) if fresh else {}
    first |= {tp: ends[tp] for tp in unread}
    for part in parts:
        tp = part.tp
        if tp in fresh:
            part.ledger.begin(first[tp])
            found[tp] = Position(first[tp])
        at = found[tp]
        mark = None
        if marks is not None:
            mark = marks.take_over(tp, at.metadata, at.offset, ends[tp])
        part.ledger.say(mark)
        if mark is None:
            found[tp] = Position(at.offset, at.metadata, part.source_epoch)
        else:
            found[tp] = part.ledger.position()
    return found


async def confirm_positions(
    source: Source,
    parts: Sequence[Partition],
    positions: Mapping[TP, Position],
    *,
    mode: Mode,
    confirms: bool,
) -> Set[TP]:
    """Return the partitions that are ours behind all that was read of them (P-5 step 4).

    Marks are committed, in either mode (P-14), and tell it by themselves.
    """
    marked = {p.tp: positions[p.tp] for p in parts if p.tp in positions and p.ledger.mark}
    others = {tp: at for tp, at in positions.items() if tp not in marked}
    confirmed: Set[TP] = frozenset()
    if confirms and mode is Mode.AT_LEAST_ONCE:
        marked, others = dict(positions), {}
    if marked:
        confirmed = await source.confirm(marked)
    if mode is Mode.EXACTLY_ONCE and others:
        # Positions travel in transactions only (P-8).
        return confirmed | await source.still_assigned({tp: at.epoch for tp, at in others.items()})
    return confirmed | others.keys()
