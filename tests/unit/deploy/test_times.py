"""What commands make of `--since` and `--until`."""

import pytest
from headrace.deploy.failure import CommandFailed
from headrace.deploy.times import period_ms, time_ms

NOW_MS = 1_893_499_200_000  # 2030-01-01T12:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", NOW_MS - 90_000),
        ("30m", NOW_MS - 1_800_000),
        ("2h", NOW_MS - 7_200_000),
        ("7d", NOW_MS - 604_800_000),
        ("2030-01-01T12:00:00Z", NOW_MS),
        ("2030-01-01T12:00", NOW_MS),
        ("2030-01-01T13:00:00+01:00", NOW_MS),
        ("2030-01-01", NOW_MS - 43_200_000),
        ("20300101", NOW_MS - 43_200_000),
        ("1893499200000", NOW_MS),
        ("999999999d", NOW_MS - 999_999_999 * 86_400_000),
    ],
)
def test_a_time_is_an_age_or_a_time_in_utc(text, expected):
    assert time_ms("--since", text, NOW_MS) == expected


@pytest.mark.parametrize(
    "text", ["soon", "2 h", "-2h", "2w", "2030-13-01", "٣h", "9" * 16, "9" * 5000]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(
        CommandFailed, match=r"--until = .*: expected an age such as 30m"
    ) as caught:
        time_ms("--until", text, NOW_MS)
    assert caught.value.status == 2


def test_a_period_has_two_ends_or_fewer():
    assert period_ms("", "", NOW_MS) == (None, None)
    assert period_ms("2h", "", NOW_MS) == (NOW_MS - 7_200_000, None)
    assert period_ms("2h", "1h", NOW_MS) == (NOW_MS - 7_200_000, NOW_MS - 3_600_000)


@pytest.mark.parametrize(
    ("since", "until"), [("1h", "2h"), ("1h", "1h"), ("2030-01-02", "2030-01-01")]
)
def test_a_period_that_ends_before_it_begins_is_refused(since, until):
    """Nothing would be found in it, and that would look like good news."""
    with pytest.raises(CommandFailed, match="expected a time after --since") as caught:
        period_ms(since, until, NOW_MS)
    assert caught.value.status == 2
