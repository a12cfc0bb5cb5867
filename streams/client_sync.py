"""The client for programs without an event loop: a thread runs one, and every method waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar, Unpack

from headrace.schemas.errors import Unavailable
from headrace.schemas.infer import SequenceId
from headrace.streams.claims import Claims
from headrace.streams.client_async import DEFAULT_MAX_IN_FLIGHT, DEFAULT_TIMEOUT_S, Client
from headrace.streams.client_results import Results
from headrace.streams.client_sequence import SequenceSteps
from headrace.streams.client_values import Answer, Inputs, Options, Result
from headrace.streams.log import Log

T = TypeVar("T")


class Portal:
    """The way into the thread of an open client, from any other one."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        """Keep the client, and the loop that runs it."""
        self.client = client
        self._loop = loop
        self._stop = asyncio.Event()

    def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await in the thread what ``make`` returns there, and wait for it; given up when the waiting is interrupted.

        Raises:
            InferError: The call's; `Unavailable` where the client closes before it ends.
        """
        future = self._start(make)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable("the client was closed before an answer came") from None
        except BaseException:
            future.cancel()
            raise

    def forget(self, make: Callable[[], Awaitable[object]]) -> None:
        """Start the same and wait for nothing: the collector may free a generator in the client's own thread."""
        with suppress(Unavailable):
            self._start(make)

    def stop(self) -> None:
        """Let `stopped` return, if the thread has not ended already."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)

    async def stopped(self) -> None:
        """Wait for `stop`; in the thread."""
        await self._stop.wait()

    def _start(self, make: Callable[[], Awaitable[T]]) -> concurrent.futures.Future[T]:
        coroutine = _awaited(make)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise Unavailable("the client is closed") from None


class SyncClient:
    """`Client` under the same names, for any number of threads. A context manager.

    Example:
        with SyncClient("127.0.0.1:9092") as client:
            print(client.infer("mlp", {"x": array})["y"])
    """

    def __init__(
        self,
        kafka: str | Mapping[str, str] | Log,
        *,
        prefix: str = "headrace",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        claims: Claims | None = None,
    ) -> None:
        """Take what `Client` takes.

        Raises:
            ConfigError: As there.
        """
        self._make: Callable[[], Client] = partial(
            Client,
            kafka,
            prefix=prefix,
            timeout_s=timeout_s,
            max_in_flight=max_in_flight,
            claims=claims,
        )
        self._make()  # refuses here what it would refuse in the thread
        self._portal: Portal | None = None
        self._thread: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __enter__(self) -> Self:
        """Start the thread and connect.

        Raises:
            LogError: As `Client`.
        """
        opened: concurrent.futures.Future[Portal] = concurrent.futures.Future()
        self._thread = concurrent.futures.Future()
        threading.Thread(
            target=self._live, args=(opened, self._thread), name="headrace-client", daemon=True
        ).start()
        try:
            self._portal = opened.result()
        except BaseException:
            # Interrupted, it may yet open: then it shall close at once.
            opened.add_done_callback(_stop_opened)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        """End what is open with `Unavailable`, disconnect and end the thread."""
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.stop()
            self._thread.result()

    def models(self) -> list[str]:
        """See `Client.models`."""
        portal = self._opened()
        return portal.call(lambda: _now(portal.client.models))

    def infer(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Answer:
        """See `Client.infer`."""
        portal = self._opened()
        return portal.call(lambda: portal.client.infer(model, inputs, **options))

    def stream(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Iterator[Answer]:
        """See `Client.stream`; it is closed where its reader stops."""
        portal = self._opened()
        yield from _each(portal, portal.client.stream(model, inputs, **options))

    def send(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> None:
        """See `Client.send`."""
        portal = self._opened()
        portal.call(lambda: portal.client.send(model, inputs, **options))

    def sequence(
        self, model: str, sequence_id: SequenceId = 0, *, version: str = ""
    ) -> SyncSequenceSteps:
        """See `Client.sequence`."""
        portal = self._opened()
        return SyncSequenceSteps(
            portal, portal.client.sequence(model, sequence_id, version=version)
        )

    def results(
        self,
        model: str = "",
        *,
        topic: str = "",
        from_beginning: bool = False,
        to_end: bool = False,
    ) -> SyncResults:
        """See `Client.results`."""
        portal = self._opened()
        make = partial(
            portal.client.results,
            model,
            topic=topic,
            from_beginning=from_beginning,
            to_end=to_end,
        )
        return SyncResults(portal, portal.call(lambda: _now(make)))

    def _opened(self) -> Portal:
        if self._portal is None:
            raise Unavailable("the client is not open, expected a call inside its `with` block")
        return self._portal

    def _live(
        self,
        opened: concurrent.futures.Future[Portal],
        ended: concurrent.futures.Future[None],
    ) -> None:
        try:
            asyncio.run(self._serve(opened))
        except BaseException as exc:  # noqa: BLE001  # handed to whoever waits
            if not opened.done():
                opened.set_exception(exc)
            ended.set_exception(exc)
        else:
            ended.set_result(None)

    async def _serve(self, opened: concurrent.futures.Future[Portal]) -> None:
        async with self._make() as client:
            portal = Portal(client, asyncio.get_running_loop())
            opened.set_result(portal)
            await portal.stopped()


class SyncSequenceSteps:
    """`SequenceSteps` under the same names. A context manager."""

    def __init__(self, portal: Portal, steps: SequenceSteps) -> None:
        """Keep the steps, and where they run."""
        self._portal = portal
        self._steps = steps

    @property
    def id(self) -> SequenceId:
        """See `SequenceSteps.id`."""
        return self._steps.id

    @property
    def is_live(self) -> bool:
        """See `SequenceSteps.is_live`."""
        return self._steps.is_live

    def __enter__(self) -> Self:
        """See `SequenceSteps.__aenter__`."""
        self._portal.call(self._steps.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """See `SequenceSteps.__aexit__`."""
        self._portal.call(lambda: self._steps.__aexit__(*exc))

    def infer(self, inputs: Inputs, *, end: bool = False, **options: Unpack[Options]) -> Answer:
        """See `SequenceSteps.infer`."""
        return self._portal.call(lambda: self._steps.infer(inputs, end=end, **options))

    def stream(
        self, inputs: Inputs, *, end: bool = False, **options: Unpack[Options]
    ) -> Iterator[Answer]:
        """See `SequenceSteps.stream`."""
        yield from _each(self._portal, self._steps.stream(inputs, end=end, **options))


class SyncResults:
    """`Results` under the same names: an iterator, and a context manager that closes it."""

    def __init__(self, portal: Portal, results: Results) -> None:
        """Keep the results, and where they are read."""
        self._portal = portal
        self._results = results

    def __enter__(self) -> Self:
        """See `Results.__aenter__`."""
        self._portal.call(self._results.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Result:
        """Return the next result; waits for one."""
        result = self._portal.call(lambda: anext(self._results, None))
        if result is None:
            raise StopIteration
        return result

    def close(self) -> None:
        """Read no more."""
        self._portal.call(self._results.aclose)


def _stop_opened(opened: concurrent.futures.Future[Portal]) -> None:
    if opened.exception() is None:
        opened.result().stop()


def _each(portal: Portal, answers: AsyncGenerator[Answer, None]) -> Iterator[Answer]:
    """Hand on what a stream yields; it is closed where its reader stops."""
    try:
        while (answer := portal.call(lambda: anext(answers, None))) is not None:
            yield answer
    finally:
        portal.forget(answers.aclose)


async def _now(make: Callable[[], T]) -> T:
    """Call something in the loop's thread."""
    return make()


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    """Make and await what may be no coroutine, such as the next step of a generator."""
    return await make()
