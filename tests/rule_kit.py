"""Finds the storm that breaks without a rule of the delivery protocol, and plays the same ones with it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

SEEDS = 100
"""Storms within which a missing rule must show; each is needed for far fewer today."""


def first_broken(play: Callable[[int], object], *how: str, seeds: int = SEEDS) -> int:
    """Return the first seed that fails in one of these ways."""
    seen = []
    for seed in range(seeds):
        try:
            play(seed)
        except (AssertionError, BaseExceptionGroup) as exc:
            if any(way in text_of(exc) for way in how):
                return seed
            seen.append(text_of(exc)[:200])
        finally:
            gc.collect()  # tasks that failed are reported here, not in the middle of another test
    raise AssertionError(
        f"none of {seeds} storms fails with {' or '.join(how)}, others: {seen[:3]}"
    )


def hold(play: Callable[[int], object], last: int, *, most: int = SEEDS) -> None:
    """Play the seeds up to this one, at ``most`` so many, with every rule in force."""
    for seed in range(max(0, last + 1 - most), last + 1):
        play(seed)


def needed(
    rule: tuple[object, str],
    instead: object,
    play: Callable[[int], object],
    *how: str,
    seeds: int = SEEDS,
) -> None:
    """Take a rule away, an attribute of its owner, find the storm that breaks without it, and play on with the rule.

    Args:
        rule: Owner and name of the attribute.
        instead: What stands in its place meanwhile.
        play: As of `first_broken`, and so are the others.
        how: What is said of a broken storm.
        seeds: Storms within which one must break.
    """
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(*rule, instead)
        last = first_broken(play, *how, seeds=seeds)
    hold(play, last)


def text_of(exc: BaseException) -> str:
    """Return what went wrong, of a group all of it."""
    if isinstance(exc, BaseExceptionGroup):
        return " ".join(map(text_of, exc.exceptions))
    return str(exc)
