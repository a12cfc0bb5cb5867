"""`headrace claims cleanup`: removes old values from the claim-check store."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from headrace.deploy.claims import claims_of
from headrace.deploy.console import out
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings
from headrace.schemas.errors import ConfigError
from headrace.streams.claims import Cleaned

app = typer.Typer(no_args_is_help=True)


@app.callback()
def claims() -> None:
    """Look after values that are too large for a record.

    [bold]Examples[/]

      headrace claims cleanup --claim-check-url /var/lib/headrace/claims --dry-run
    """


@app.command()
@with_settings(
    "claim_check_url", "claim_check_ttl_secs", "claim_check_timeout_secs", "config", "log_level"
)
def cleanup(
    settings: Settings,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count; remove nothing.")
    ] = False,
) -> None:
    """Remove values that are older than --claim-check-ttl-secs from the store.

    Workers do so by themselves, unless --claim-check-ttl-secs is 0; this is for a store that none of them cleans.

    [bold]Examples[/]

      headrace claims cleanup --claim-check-url /var/lib/headrace/claims --dry-run

      headrace claims cleanup --claim-check-url s3://bucket/claims --claim-check-ttl-secs 86400
    """
    if not settings.claim_check_ttl_secs:
        raise ConfigError(
            "expected the age from which values are removed, above 0",
            field="--claim-check-ttl-secs",
            value="0",
        )
    removed, kept = asyncio.run(_clean(settings, dry_run=dry_run))
    what = "would be removed" if dry_run else "removed"
    out.print(
        f"{removed} values {what}, {kept} of the same hours are not old enough", markup=False
    )


async def _clean(settings: Settings, *, dry_run: bool) -> Cleaned:
    store = claims_of(settings, 0)
    if store is None:
        raise ConfigError("expected the store's URL or folder", field="--claim-check-url")
    return await store.clean(dry_run=dry_run)
