"""Times as options name them: an age, a time in UTC, or milliseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from headrace.deploy.failure import CommandFailed

AGE = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
EPOCH = re.compile(r"\d{10,15}", re.ASCII)
"""Fewer digits are a date, such as 20300131."""

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def period_ms(since: str, until: str, now_ms: int) -> tuple[int | None, int | None]:
    """Return what ``--since`` and ``--until`` name, ms since the epoch; None where one is not given.

    Raises:
        CommandFailed: One is no time, or nothing lies between them.
    """
    start = time_ms("--since", since, now_ms) if since else None
    end = time_ms("--until", until, now_ms) if until else None
    if start is not None and end is not None and end <= start:
        raise CommandFailed(f"--until = {until}: expected a time after --since {since}", status=2)
    return start, end


def time_ms(option: str, text: str, now_ms: int) -> int:
    """Return the time that an option names, ms since the epoch; one without a zone is in UTC.

    Raises:
        CommandFailed: It names none.
    """
    if age := AGE.fullmatch(text):
        return now_ms - int(age[1]) * UNITS_MS[age[2]]
    if EPOCH.fullmatch(text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise CommandFailed(
            f"{option} = {text[:100]}: expected an age such as 30m, 2h or 7d, a time such as 2030-01-31T12:00:00Z, "
            "or milliseconds since the epoch",
            status=2,
        ) from exc
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)
