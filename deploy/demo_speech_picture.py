"""The speech demo's picture: one stream's waveform, its probability of speech, its segments, and the kill.

matplotlib is imported here only, without its window system.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from headrace.deploy.demo_speech_audio import (
    RATE,
    SILENCE,
    SPEECH,
    STEP_S,
    Floats,
    Stream,
    segments_of,
)
from headrace.schemas.errors import ConfigError


def draw(path: Path, stream: Stream, answers: Floats, kill_s: float, gap_s: float) -> None:
    """Write a PNG of a stream.

    Args:
        path: Of the picture.
        stream: What was said.
        answers: FP32 [steps]: probabilities of speech; NaN is left out.
        kill_s: When the worker was killed, seconds of the stream.
        gap_s: For how long nothing was answered then, seconds.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an extra: only the picture needs it
    except ImportError as exc:
        raise ConfigError(
            f'the picture needs matplotlib ({exc}); install it with: pip install "headrace[demo]"'
        ) from exc
    figure = Figure(figsize=(13, 5), layout="constrained")
    wave, speech = figure.subplots(2, 1, sharex=True)
    wave.set_title(f"{stream.name} ({stream.origin})", loc="left")
    wave.plot(np.arange(len(stream.samples)) / RATE, stream.samples, color="0.35", linewidth=0.3)
    wave.set_ylabel("waveform")
    times = np.arange(len(answers)) * STEP_S
    speech.step(times, answers, where="post", color="tab:blue", linewidth=1, label="probability")
    for level in (SPEECH, SILENCE):
        speech.axhline(level, color="0.6", linewidth=0.6, linestyle=":")
    speech.set_ylabel("probability of speech")
    speech.set_ylim(-0.03, 1.03)
    speech.set_xlabel("seconds")
    speech.set_xlim(0, len(answers) * STEP_S)
    for axes in (wave, speech):
        for number, (start, end) in enumerate(segments_of(answers)):
            axes.axvspan(
                start,
                end,
                color="tab:green",
                alpha=0.18,
                linewidth=0,
                label="speech" if number == 0 else "",
            )
        axes.axvline(
            kill_s,
            color="tab:red",
            linewidth=1.5,
            label=f"worker killed; the next answer {gap_s:.1f} s later is another worker's",
        )
    figure.legend(*speech.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    try:
        figure.savefig(path, dpi=110, format="png")
    except OSError as exc:
        raise ConfigError(
            f"the picture cannot be written: {exc}", field="--picture", value=path
        ) from exc
