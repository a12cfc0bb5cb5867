"""The client for programs without an event loop: a thread runs one, and every method waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Protocol, Self, TypeVar, Unpack

from headrace.schemas.errors import Unavailable
from headrace.schemas.infer import SequenceId
from headrace.streams.claims import Claims
from headrace.streams.client_async import DEFAULT_MAX_IN_FLIGHT, DEFAULT_TIMEOUT_S, Client
from headrace.streams.client_results import Results
from headrace.streams.client_sequence import SequenceSteps
from headrace.streams.client_values import Answer, Inputs, Options, Result
from headrace.streams.log import Log

T = TypeVar("T")


class Call(Protocol):
    """Runs something in the client's thread and waits for it."""

    def __call__(self, make: Callable[[Client], Awaitable[T]]) -> T:
        """See `SyncClient`."""


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
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._stop: asyncio.Event | None = None
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()

    def __enter__(self) -> Self:
        """Start the thread and connect.

        Raises:
            LogError: As `Client`.
        """
        opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._live, args=(opened,), name="headrace-client", daemon=True
        )
        self._thread.start()
        try:
            opened.result()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        """End what is open with `Unavailable`, disconnect and end the thread."""
        self._end()
        self._ended.result()

    def models(self) -> list[str]:
        """See `Client.models`."""
        return self._call(lambda client: _now(client.models))

    def infer(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Answer:
        """See `Client.infer`."""
        return self._call(lambda client: client.infer(model, inputs, **options))

    def stream(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Iterator[Answer]:
        """See `Client.stream`; whoever stops before its end closes it, or lets go of it."""
        answers = self._opened().stream(model, inputs, **options)
        yield from _each(answers, self._call)

    def send(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> None:
        """See `Client.send`."""
        self._call(lambda client: client.send(model, inputs, **options))

    def sequence(
        self, model: str, sequence_id: SequenceId = 0, *, version: str = ""
    ) -> SyncSequenceSteps:
        """See `Client.sequence`."""
        steps = self._opened().sequence(model, sequence_id, version=version)
        return SyncSequenceSteps(steps, self._call)

    def results(
        self,
        model: str = "",
        *,
        topic: str = "",
        from_beginning: bool = False,
        to_end: bool = False,
    ) -> SyncResults:
        """See `Client.results`."""
        results = self._call(
            lambda client: _now(
                lambda: client.results(
                    model, topic=topic, from_beginning=from_beginning, to_end=to_end
                )
            )
        )
        return SyncResults(results, self._call)

    def _opened(self) -> Client:
        if self._client is None:
            raise Unavailable("the client is not open, expected a call inside its `with` block")
        return self._client

    def _call(self, make: Callable[[Client], Awaitable[T]]) -> T:
        """Run a coroutine in the thread and wait for it; given up when the waiting is interrupted."""
        client, loop = self._opened(), self._loop
        assert loop is not None
        future = asyncio.run_coroutine_threadsafe(_awaited(make(client)), loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable("the client was closed before an answer came") from None
        except BaseException:
            future.cancel()
            raise

    def _end(self) -> None:
        self._client = None
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join()
        self._loop = self._thread = self._stop = None

    def _live(self, opened: concurrent.futures.Future[None]) -> None:
        try:
            asyncio.run(self._serve(opened))
        except BaseException as exc:  # noqa: BLE001  # handed to whoever waits
            if not opened.done():
                opened.set_exception(exc)
            self._ended.set_exception(exc)
        else:
            self._ended.set_result(None)

    async def _serve(self, opened: concurrent.futures.Future[None]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._make() as client:
            self._client = client
            opened.set_result(None)
            await self._stop.wait()


class SyncSequenceSteps:
    """`SequenceSteps` under the same names. A context manager."""

    def __init__(self, steps: SequenceSteps, call: Call) -> None:
        """Keep the steps, and what runs them."""
        self._steps = steps
        self._call = call

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
        self._call(lambda _: self._steps.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        """See `SequenceSteps.__aexit__`."""
        self._call(lambda _: self._steps.__aexit__(*exc))

    def infer(self, inputs: Inputs, *, end: bool = False, **options: Unpack[Options]) -> Answer:
        """See `SequenceSteps.infer`."""
        return self._call(lambda _: self._steps.infer(inputs, end=end, **options))

    def stream(
        self, inputs: Inputs, *, end: bool = False, **options: Unpack[Options]
    ) -> Iterator[Answer]:
        """See `SequenceSteps.stream`."""
        answers = self._steps.stream(inputs, end=end, **options)
        yield from _each(answers, self._call)


class SyncResults:
    """`Results` under the same names: an iterator, and a context manager that closes it."""

    def __init__(self, results: Results, call: Call) -> None:
        """Keep the results, and what reads them."""
        self._results = results
        self._call = call

    def __enter__(self) -> Self:
        """See `Results.__aenter__`."""
        self._call(lambda _: self._results.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        """Close."""
        self.close()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Result:
        """Return the next result; waits for one."""
        result = self._call(lambda _: anext(self._results, None))
        if result is None:
            raise StopIteration
        return result

    def close(self) -> None:
        """Read no more."""
        self._call(lambda _: self._results.aclose())


def _each(answers: AsyncGenerator[Answer, None], call: Call) -> Iterator[Answer]:
    """Hand on what a stream yields; it is closed where its reader stops, unless the client has closed it."""
    try:
        while (answer := call(lambda _: anext(answers, None))) is not None:
            yield answer
    finally:
        with suppress(Unavailable):
            call(lambda _: answers.aclose())


async def _now(make: Callable[[], T]) -> T:
    """Call something in the loop's thread."""
    return make()


async def _awaited(awaitable: Awaitable[T]) -> T:
    """Await what may be no coroutine, such as the next step of a generator."""
    return await awaitable
