"""Audio of the speech demo: recordings cut into streams, streams into steps, probabilities into segments.

Pure, but for `read_wav`. A step is what Silero VAD takes at a time: 512 samples at 16 kHz, 32 ms, behind the last 64
samples of the step before.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from headrace.schemas.errors import ConfigError

RATE = 16_000
"""Samples per second."""
STEP = 512
"""New samples of a step."""
CONTEXT = 64
"""Samples of the step before that a step begins with; zeros at the first."""
STEP_S = STEP / RATE

# Silero's own defaults.
SPEECH = 0.5
"""From this probability on, speech begins."""
SILENCE = 0.35
"""Below this one it may end: what lies between changes nothing."""
MIN_SILENCE = RATE * 100 // 1000
"""Samples of silence that end a segment."""
MIN_SPEECH = RATE * 250 // 1000
"""Samples that a segment must have more of."""
PAD = RATE * 30 // 1000
"""Samples that a segment is longer on both sides than its steps say."""

SPOKEN_EVERY = 8
"""One stream of so many says the short recording again and again, the others are cut from the long one."""
PAUSE_S = 0.5
"""Silence after the short recording."""

Segment: TypeAlias = tuple[float, float]
"""Beginning and end of speech, seconds."""
Floats: TypeAlias = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Stream:
    """Somebody at a microphone: one sequence.

    Attributes:
        name: The sequence's id, and the key of its records.
        origin: Recording and second that it is cut from.
        samples: FP32 [samples], -1 to 1.
        steps: FP32 [steps, 576], what the model takes.
    """

    name: str
    origin: str
    samples: Floats
    steps: Floats


def read_wav(path: Path) -> Floats:
    """Return a recording as FP32 [samples], -1 to 1.

    Raises:
        ConfigError: It is not 16 kHz mono of 16 bits.
    """
    with wave.open(str(path)) as file:
        found = (file.getframerate(), file.getnchannels(), 8 * file.getsampwidth())
        if found != (RATE, 1, 16):
            raise ConfigError(
                "{} has {} Hz, {} channels and {} bits, expected 16000, 1 and 16".format(
                    path, *found
                )
            )
        raw = file.readframes(file.getnframes())
    return np.frombuffer(raw, "<i2").astype(np.float32) / 32768


def cut_streams(minute: Floats, second: Floats, count: int, steps: int) -> list[Stream]:
    """Cut so many streams of so many steps from the two recordings, each from another place; they wrap around.

    Args:
        minute: The long recording.
        second: The short one; it is repeated with pauses.
        count: Streams.
        steps: Of each.
    """
    spoken = np.concatenate([second, np.zeros(int(PAUSE_S * RATE), np.float32)])
    streams = []
    for number in range(count):
        is_spoken = number % SPOKEN_EVERY == SPOKEN_EVERY - 1
        recording = spoken if is_spoken else minute
        start = number * len(recording) // count
        samples = recording[np.arange(start, start + steps * STEP) % len(recording)]
        origin = f"{'speech.wav' if is_spoken else 'test.wav'} from {start / RATE:.2f} s"
        streams.append(Stream(f"stream-{number:03d}", origin, samples, steps_of(samples)))
    return streams


def steps_of(samples: Floats) -> Floats:
    """Return FP32 [steps, 576]: 64 samples of context and 512 new ones; the last step is filled with zeros."""
    count = -(-len(samples) // STEP)
    new = np.zeros((count, STEP), np.float32)
    new.reshape(-1)[: len(samples)] = samples
    context = np.zeros((count, CONTEXT), np.float32)
    context[1:] = new[:-1, -CONTEXT:]
    return np.concatenate([context, new], axis=1)


def segments_of(probabilities: Sequence[float] | Floats) -> list[Segment]:
    """Return when somebody speaks, by the rules of Silero's ``get_speech_timestamps`` with its defaults.

    Args:
        probabilities: Of speech, one per step.
    """
    spoken: list[tuple[int, int]] = []
    begun: int | None = None
    quiet: int | None = None  # since when the probability has not come back to SPEECH
    for number, probability in enumerate(probabilities):
        now = number * STEP
        if probability >= SPEECH:
            quiet = None
            begun = now if begun is None else begun
        elif probability < SILENCE and begun is not None:
            quiet = now if quiet is None else quiet
            if now - quiet >= MIN_SILENCE:
                spoken.append((begun, quiet))
                begun = quiet = None
    length = len(probabilities) * STEP
    if begun is not None:
        spoken.append((begun, length))
    return _padded([(start, end) for start, end in spoken if end - start > MIN_SPEECH], length)


def _padded(spoken: Sequence[tuple[int, int]], length: int) -> list[Segment]:
    """Lengthen segments by `PAD`, but by half of the silence between two at most and not beyond the recording."""
    gaps = [after[0] - before[1] for before, after in pairwise(spoken)]
    pads = [PAD, *(min(PAD, gap // 2) for gap in gaps), PAD]
    return [
        (max(0, start - pads[number]) / RATE, min(length, end + pads[number + 1]) / RATE)
        for number, (start, end) in enumerate(spoken)
    ]
