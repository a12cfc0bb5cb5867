"""What a delivery has buffered, by owner: the part that all deliveries share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from headrace.schemas.record import TP, Out


def redirect(
    buffers: Iterable[Mapping[TP, Sequence[Out]]], topics: Set[str], change: Callable[[Out], None]
) -> None:
    """Change every record in these buffers that is for one of these topics."""
    for buffer in buffers:
        for outs in buffer.values():
            for out in outs:
                if out.topic in topics:
                    change(out)
