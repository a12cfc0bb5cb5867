"""What the speech demo did, and whether it is good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

import numpy as np
from headrace.deploy.demo_speech_audio import STEP_S, Floats, Stream, segments_of
from headrace.deploy.demo_speech_model import TOLERANCE, Departure
from headrace.deploy.demo_speech_tally import Tally

PAUSE_S = 1.0
"""Silence between two segments that makes a picture worth looking at, seconds."""
LEAST_STREAMS = 64
"""Streams that must have been compared, unless the user says how many to take."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The moment at which the first worker was killed.

    Attributes:
        moment_s: On the monotonic clock, seconds.
        answered: Answers that had been read.
        open: Streams of which some but not all steps were answered.
    """

    moment_s: float
    answered: int
    open: int

    @classmethod
    def of(cls, moment_s: float, tally: Tally) -> Self:
        """Note the moment, with the answers that had been read by then."""
        there = (tally.arrived <= moment_s).sum(axis=1)
        is_open = (there > 0) & (there < tally.arrived.shape[1])
        return cls(moment_s, int(there.sum()), int(is_open.sum()))


@dataclass(slots=True)
class Run:
    """What the demo did.

    Attributes:
        streams: What was sent.
        tally: What came back.
        sent_s: When each step was sent, of all streams at once, on the monotonic clock.
        kill: Of the first worker.
        batch_rows: Upper bound of rows → number of batches of the second worker.
        least: Streams that must be equal for the run to be good.
        expected: FP32 [streams, steps]: the probabilities of the model run alone; NaN until it has.
        departures: Row of a stream → where it leaves them.
    """

    streams: Sequence[Stream]
    tally: Tally
    sent_s: Sequence[float]
    kill: Kill
    batch_rows: Mapping[str, int]
    least: int = LEAST_STREAMS
    expected: Floats = field(init=False)
    departures: dict[int, Departure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make room for what the model says alone."""
        self.expected = np.full_like(self.tally.answers, np.nan)

    @property
    def steps(self) -> int:
        """Steps of all streams."""
        return int(self.tally.answers.size)

    @property
    def lost(self) -> int:
        """Steps without a probability, and steps that a state does not contain."""
        unanswered = int(np.isnan(self.tally.answers).sum())
        return unanswered + sum(departure.lost for departure in self.departures.values())

    @property
    def twice(self) -> int:
        """Steps that a state contains twice."""
        return sum(departure.twice for departure in self.departures.values())

    @property
    def equal(self) -> int:
        """Steps whose probability is the model's own."""
        return int((self.differences <= TOLERANCE).sum())

    @property
    def differences(self) -> Floats:
        """How far each answer is from the model's own, FP32 [streams, steps]; NaN where one is missing."""
        return np.abs(self.tally.answers - self.expected)

    @property
    def largest_difference(self) -> float:
        """The largest of them, 0 if there is none."""
        return float(np.nan_to_num(self.differences).max(initial=0.0))

    @property
    def gap_s(self) -> float:
        """Longest time without an answer after the kill, seconds."""
        return self.tally.longest_gap(self.kill.moment_s)

    @property
    def latency_p50_s(self) -> float:
        """Median time from a step to its answer until the kill, seconds; NaN if there is none."""
        before = self.tally.arrived <= self.kill.moment_s
        sent = np.full(self.tally.arrived.shape[1], np.nan)
        sent[: len(self.sent_s)] = self.sent_s
        latencies = (self.tally.arrived - sent)[before]
        return float(np.median(latencies)) if latencies.size else float("nan")

    @property
    def is_good(self) -> bool:
        """Whether enough streams were open at the kill, and every step has the model's own answer, in order."""
        tally = self.tally
        return (
            len(self.streams) >= self.least
            and self.kill.open == len(self.streams)
            and self.equal == self.steps
            and not self.lost
            and not self.twice
            and not tally.errors
            and not tally.disordered
            and not tally.repeated_differently
        )

    def kill_s(self, row: int) -> float:
        """Return how far a stream had been answered at the kill, seconds of the stream."""
        return float((self.tally.arrived[row] <= self.kill.moment_s).sum()) * STEP_S

    @property
    def pictured_row(self) -> int:
        """The stream to draw: one with speech at the kill and a long pause if any has them, and much speech."""

        def interest(row: int) -> tuple[bool, bool, float]:
            segments, kill_s = segments_of(self.tally.answers[row]), self.kill_s(row)
            speaks = any(start < kill_s < end for start, end in segments)
            pauses = any(after[0] - before[1] > PAUSE_S for before, after in pairwise(segments))
            return speaks, pauses, sum(end - start for start, end in segments)

        return max(range(len(self.streams)), key=interest)

    @property
    def pictured(self) -> Stream:
        """That stream."""
        return self.streams[self.pictured_row]

    @property
    def seconds(self) -> float:
        """Length of a stream."""
        return len(self.streams[0].steps) * STEP_S
