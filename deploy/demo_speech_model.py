"""Silero VAD: as a model repository, and run alone, step by step, to say what each answer must be.

onnxruntime is imported here only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from headrace.deploy.demo_speech_audio import RATE, Floats
from headrace.schemas.errors import ConfigError

MODEL = "silero_vad"
TOLERANCE = 1e-5
"""Answers may differ by so much from the model run alone: a runtime may round a batch otherwise than a row."""
LOOK_BACK = 16
"""Steps in a row that may be missing or doubled, when the reason of a difference is looked for; or all."""
LATE = 8
"""Steps between these and the first difference: answered before a crash, so that only their second answers show it."""
EXPLAINED = 16
"""Answers in a row that a reason must explain: one alone may be equal by chance."""

CONFIG = f"""backend: "onnxruntime"
max_batch_size: 64
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ 576 ] }} ]
output [ {{ name: "output" data_type: TYPE_FP32 dims: [ 1 ] }} ]
sequence_batching {{
  max_sequence_idle_microseconds: 60000000
  oldest {{ max_candidate_sequences: 256 max_queue_delay_microseconds: 2000 }}
  state [ {{
    input_name: "state" output_name: "stateN" data_type: TYPE_FP32 dims: [ 2, 128 ]
    initial_state: {{ name: "silence" data_type: TYPE_FP32 dims: [ 2, 128 ] zero_data: true }}
  }} ]
}}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "batch_axis.state" value {{ string_value: "1" }} }}
parameters {{ key: "batch_axis.stateN" value {{ string_value: "1" }} }}
parameters {{ key: "constant.sr" value {{ string_value: "{RATE}" }} }}
parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}
"""


def write_repository(repository: Path, model: Path) -> None:
    """Write a model repository with Silero VAD in it: a configuration and one version."""
    version = repository / MODEL / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(model.read_bytes())
    (repository / MODEL / "config.pbtxt").write_text(CONFIG)


@dataclass(frozen=True, slots=True)
class Departure:
    """Where a stream's answers leave those of the model run alone, and why.

    Attributes:
        step: The first step whose answer differs.
        lost: Steps before it that its state does not contain.
        twice: Steps before it that its state contains twice.
    """

    step: int
    lost: int = 0
    twice: int = 0


class Silero:
    """The model run alone: batches of one, in order, the state handed from step to step."""

    def __init__(self, model: Path) -> None:
        """Load the model on one thread.

        Raises:
            ConfigError: onnxruntime is not installed; the sentence names the extra.
        """
        try:
            import onnxruntime  # noqa: PLC0415  # an extra
        except ImportError as exc:
            raise ConfigError(
                f'the demo needs onnxruntime ({exc}); install it with: pip install "headrace[demo]"'
            ) from exc
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        self._rate = np.array(RATE, np.int64)

    @property
    def silence(self) -> Floats:
        """The state before the first step, FP32 [2, 1, 128]."""
        return np.zeros((2, 1, 128), np.float32)

    def step(self, state: Floats, step: Floats) -> tuple[float, Floats]:
        """Run one step, FP32 [576]; returns the probability of speech and the next state."""
        output, state = self._session.run(
            None, {"input": step[None], "state": state, "sr": self._rate}
        )
        return float(output[0, 0]), state

    def alone(self, steps: Floats) -> Floats:
        """Return the probability of speech per step, FP32 [steps], of steps FP32 [steps, 576] run in order."""
        state, probabilities = self.silence, []
        for step in steps:
            probability, state = self.step(state, step)
            probabilities.append(probability)
        return np.array(probabilities, np.float32)

    def departure(self, steps: Floats, answers: Floats, expected: Floats) -> Departure | None:
        """Return where the answers leave the expected ones, and which history explains those that follow, if any does.

        Args:
            steps: FP32 [steps, 576].
            answers: FP32 [steps]; NaN where there is none, which is not looked at.
            expected: What the model says alone, FP32 [steps].
        """
        differing = np.flatnonzero(np.abs(answers - expected) > TOLERANCE)
        if not differing.size:
            return None
        first = int(differing[0])
        states = [self.silence]
        for step in steps[:first]:
            states.append(self._run(states[-1], step[None]))
        after = slice(first, first + EXPLAINED)
        for end in range(first, max(first - LATE, 0), -1):
            for start in (*range(end - 1, max(end - LOOK_BACK, 0), -1), 0):
                lost = self._run(states[start], steps[end:first])
                if self._explains(lost, steps[after], answers[after]):
                    return Departure(first, lost=end - start)
                twice = self._run(states[end], steps[start:first])
                if self._explains(twice, steps[after], answers[after]):
                    return Departure(first, twice=end - start)
        return Departure(first)

    def _run(self, state: Floats, steps: Floats) -> Floats:
        """Return the state after these steps."""
        for step in steps:
            state = self.step(state, step)[1]
        return state

    def _explains(self, state: Floats, steps: Floats, answers: Floats) -> bool:
        """Whether the model gives these answers from this state on."""
        for step, answer in zip(steps, answers, strict=True):
            probability, state = self.step(state, step)
            if abs(probability - answer) > TOLERANCE:
                return False
        return True
