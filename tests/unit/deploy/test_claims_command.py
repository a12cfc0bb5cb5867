"""The claim-check store by its options, and `headrace claims cleanup` (FAULTS B95)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from headrace.deploy.claims import claims_of
from headrace.deploy.cli import main
from headrace.deploy.settings import load_settings
from headrace.schemas.errors import ConfigError
from headrace.streams.claims import default_above, object_name

HOUR_MS = 3_600_000


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code or 0


def put(folder: Path, age_h: float) -> Path:
    """Write a value as a worker did so many hours ago."""
    path = folder / object_name(time.time_ns() // 1_000_000 - int(age_h * HOUR_MS), "0" * 32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_B95_the_command_removes_what_is_too_old(tmp_path, capsys):
    old, young = put(tmp_path, 30), put(tmp_path, 20)
    options = ("--claim-check-url", str(tmp_path), "--claim-check-ttl-secs", "86400")
    assert run("claims", "cleanup", *options, "--dry-run") == 0
    assert "1 values would be removed" in capsys.readouterr().out
    assert old.exists()
    assert run("claims", "cleanup", *options) == 0
    assert "1 values removed" in capsys.readouterr().out
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "--claim-check-url: expected the store's URL or folder"),
        (("--claim-check-url", "nosuch://a/b"), "there is no store of this kind"),
        (("--claim-check-url", "/tmp", "--claim-check-ttl-secs", "0"), "above 0"),
    ],
)
def test_the_command_says_what_it_lacks(options, expected, capsys):
    assert run("claims", "cleanup", *options) == 1
    assert expected in " ".join(capsys.readouterr().err.split())


def test_without_a_url_there_is_no_store():
    assert claims_of(load_settings({}), 1_000_000) is None


def test_what_no_record_holds_is_stored_whatever_the_options_say(tmp_path):
    said = {"claim_check_url": str(tmp_path)}
    most = default_above(1_000_000)
    for above, expected in ((0, most), (5_000, 5_000), (10_000_000, most)):
        kept = claims_of(load_settings(said | {"claim_check_above": above}), 1_000_000)
        assert kept is not None
        assert kept.bounds.above == expected


def test_each_option_is_a_bound(tmp_path):
    kept = claims_of(
        load_settings(
            {
                "claim_check_url": str(tmp_path),
                "claim_check_max_bytes": "7",
                "claim_check_max_moving_bytes": "8",
                "claim_check_max_calls": "9",
                "claim_check_timeout_secs": "1.5",
                "claim_check_ttl_secs": "2.5",
            }
        ),
        1_000_000,
    )
    assert kept is not None
    bounds = kept.bounds
    assert (bounds.max_bytes, bounds.max_moving_bytes, bounds.max_calls) == (7, 8, 9)
    assert (bounds.timeout_s, bounds.ttl_s) == (1.5, 2.5)


def test_a_wrong_url_ends_a_start_before_anything_else(tmp_path, capsys):
    """Models may take minutes to load."""
    options = ("--claim-check-url", "s3://key:secret@bucket/a")
    assert run("worker", str(tmp_path), "--bootstrap-servers", "127.0.0.1:1", *options) == 1
    said = capsys.readouterr().err
    assert "without credentials" in said
    assert "secret" not in said


def test_the_url_is_a_config_error_where_the_store_is_made():
    with pytest.raises(ConfigError, match="one URL"):
        claims_of(load_settings({"claim_check_url": "a::b"}), 1)
