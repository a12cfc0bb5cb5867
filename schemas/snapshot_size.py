"""How large a snapshot and the states in it may be: all of it must fit into one record."""

from __future__ import annotations

KEY_ROOM_BYTES = 1024
"""Of a record, for the snapshot's key and the record's own fields."""

LAYOUT_ROOM_BYTES = 15 * 1024
"""Of a snapshot's value, for its head and what the sections say beside the states' bytes: steps, shapes, lengths."""


def max_snapshot_bytes(max_record_bytes: int) -> int:
    """Return how long a snapshot's value may be."""
    return max(1, max_record_bytes - KEY_ROOM_BYTES)


def max_state_bytes(max_record_bytes: int) -> int:
    """Return how many bytes of state fit into a snapshot, all of a sequence's states together."""
    return max(0, max_snapshot_bytes(max_record_bytes) - LAYOUT_ROOM_BYTES)
