"""Makes the claim-check store of a process from its settings."""

from __future__ import annotations

from headrace.deploy.settings import Settings
from headrace.streams.claim_objects import FsspecObjects
from headrace.streams.claims import ClaimBounds, Claims, default_above

CLAIMS = (
    "claim_check_url",
    "claim_check_above",
    "claim_check_max_bytes",
    "claim_check_max_moving_bytes",
    "claim_check_max_calls",
    "claim_check_timeout_secs",
    "claim_check_ttl_secs",
)
"""The settings of whoever reads and writes values."""


def claims_of(settings: Settings, max_record_bytes: int, *, cleans: bool = False) -> Claims | None:
    """Return the store that these settings name, None where they name none.

    Args:
        settings: Of the process.
        max_record_bytes: Largest record of its log: what does not fit is stored, whatever else the settings say.
        cleans: Remove old values while it is entered.

    Raises:
        ConfigError: The store's URL is wrong, or its package is not installed.
    """
    if not settings.claim_check_url:
        return None
    most = default_above(max_record_bytes)
    bounds = ClaimBounds(
        above=min(settings.claim_check_above or most, most),
        max_bytes=settings.claim_check_max_bytes,
        max_moving_bytes=settings.claim_check_max_moving_bytes,
        max_calls=settings.claim_check_max_calls,
        timeout_s=settings.claim_check_timeout_secs,
        ttl_s=settings.claim_check_ttl_secs,
    )
    return Claims(FsspecObjects(settings.claim_check_url), bounds, cleans=cleans)
