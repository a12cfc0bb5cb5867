"""What came back: one probability per step of each stream, when, how often, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from headrace.deploy.demo_speech_audio import Floats, Stream
from headrace.deploy.demo_speech_model import TOLERANCE
from headrace.deploy.demo_wire import binary_output
from headrace.schemas.record import ID, SOURCE, STATUS


def step_id(stream: str, number: int) -> bytes:
    """Return the ``id`` of a step's record, ``stream-007/42``."""
    return f"{stream}/{number}".encode()


class Tally:
    """The answers of a run.

    Attributes:
        answers: FP32 [streams, steps]: probabilities; NaN where there is none.
        arrived: FP64 [streams, steps]: when each first answer was read, seconds on the monotonic clock; NaN as above.
        repeated: Answers that came again for the same request: at least once allows them.
        repeated_differently: Those of them that are not equal.
        disordered: First answers that came before the one of the step before.
        errors: Sentence per answer that is an error or belongs to no step.
    """

    def __init__(self, streams: Sequence[Stream]) -> None:
        """Expect one answer per step of these streams, which all have equally many."""
        shape = (len(streams), len(streams[0].steps))
        self.answers: Floats = np.full(shape, np.nan, np.float32)
        self.arrived: Floats = np.full(shape, np.nan, np.float64)
        self.repeated = 0
        self.repeated_differently = 0
        self.disordered = 0
        self.errors: list[str] = []
        self._places = {
            step_id(stream.name, number): (row, number)
            for row, stream in enumerate(streams)
            for number in range(shape[1])
        }
        self._sources: dict[tuple[int, int], bytes] = {}
        self._next = [0] * shape[0]

    @property
    def answered(self) -> int:
        """Steps with an answer, be it an error."""
        return len(self._sources)

    @property
    def is_complete(self) -> bool:
        """Whether every step has one."""
        return self.answered == len(self._places)

    def take(
        self, value: bytes, headers: Mapping[str, bytes], now: float
    ) -> tuple[int, int] | None:
        """Count a result record that was read at ``now``; returns stream and step if it is the first of its step."""
        name, source = headers.get(ID, b""), headers.get(SOURCE, b"")
        place = self._places.get(name)
        if place is None:
            self.errors.append(f"{name!r} answers no step")
            return None
        answer = np.float32(np.nan)
        if headers.get(STATUS) == b"OK":
            answer = binary_output(value, headers)[0]
        else:
            self.errors.append(f"{name.decode()}: {value[:200].decode(errors='replace')}")
        if place in self._sources:
            self._take_again(name, place, source, answer)
            return None
        self._sources[place] = source
        self.answers[place] = answer
        self.arrived[place] = now
        row, number = place
        self.disordered += number != self._next[row]
        self._next[row] = number + 1
        return place

    def _take_again(
        self, name: bytes, place: tuple[int, int], source: bytes, answer: np.float32
    ) -> None:
        if source != self._sources[place]:
            self.errors.append(f"{name.decode()} was written twice")
            return
        self.repeated += 1
        # "not within" rather than "beyond": an error is NaN, and equals nothing.
        self.repeated_differently += not abs(answer - self.answers[place]) <= TOLERANCE

    def longest_gap(self, after: float) -> float:
        """Return the longest time without any first answer, seconds, from ``after`` on."""
        later = np.sort(self.arrived[self.arrived >= after])
        return float(np.diff(later, prepend=after).max(initial=0.0))
