"""Headrace for a Faust app: typed topics of a model's requests and results, and `Pipeline.infer` for its agents.

```python
kafka = {"bootstrap.servers": "127.0.0.1:9092", "session.timeout.ms": "6000"}
app = faust.App("my-pipeline", **app_settings(kafka, partitions=4))
models = Pipeline(app, kafka)


@app.agent(models.results("meter"))
async def watch(results):
    async for result in results:
        if isinstance(result, InferError):  # an error, or a record that nobody can read
            continue
        answer = await models.infer("classifier", {"x": Answer(result)["level"]})
```

The only module that imports Faust; nothing else of Headrace imports this one. Faust is for what surrounds models: to
join, window and count. It stays out of the inference path, because its worker may commit past a record that is still in
flight: with a concurrency above one a slow record is skipped at a restart (FAULTS B13: its consumer takes the offset
that it committed last for one that has been processed). What is lost so is a step of the pipeline; a request that
reached its topic is Headrace's, and is answered.

What to know of faust-streaming 0.15:

- An event is acknowledged when the agent asks for the next one, and just so when the agent raised (B18). Catch
  `InferError` where you call `Pipeline.infer`, and decide there. A stop waits for the events that agents are at, so
  keep ``timeout_s`` below the time that a stop may take.
- It reads uncommitted records unless its own ``processing_guarantee`` is ``exactly_once``, so of a model with
  ``exactly_once`` it may see an answer whose transaction is aborted, and then the same answer again. At least once, an
  answer may come twice anyway: `headrace.streams.deduplicate.Deduplicator` takes ``event.message``.
- A table's changelog must have as many partitions as the topic that feeds it: give `app_settings` the number that the
  model's topics have. It also makes topics with one replica, unless ``topic_replication_factor`` says otherwise.
- The embedded broker lets it join after half of its session timeout, which is a minute by its own default: 6 s
  (``session.timeout.ms``) is right for both kinds of broker. A table may come back without its newest changes there.
- ``python my_pipeline.py worker --without-web`` runs it: its web server listens on all interfaces otherwise, whatever
  ``web_enabled`` says. It makes the folder ``<id>-data`` where it runs, unless ``--datadir`` names another. SIGTERM
  ends it with status 0, a crash with 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import faust
import mode
from headrace.schemas.errors import ConfigError, LogError, Reason, Unavailable
from headrace.schemas.record import AVRO, CONTENT_TYPES, Record
from headrace.streams.call_records import expired
from headrace.streams.claims import Claims
from headrace.streams.client import Answer, Client, Inputs, Options
from headrace.streams.client_async import DEFAULT_MAX_IN_FLIGHT, DEFAULT_TIMEOUT_S
from headrace.streams.faust_records import (
    Written,
    key_of,
    read_request,
    read_result,
    write_request,
    write_result,
)
from headrace.streams.kafka_properties import translate
from headrace.streams.log import Log
from headrace.streams.topology import Topology


def app_settings(
    properties: Mapping[str, str], *, partitions: int, file: str = ""
) -> dict[str, Any]:
    """Return the arguments of `faust.App` that belong to a Kafka; further ones of yours go beside them.

    Args:
        properties: By Kafka's names, as everywhere in Headrace: brokers, SASL and TLS, session timeout and heartbeat,
            ``max.request.size``.
        partitions: Of the topics that Faust creates: as many as the model's topics have that the app reads.
        file: Where the properties are from, for error sentences.

    Raises:
        ConfigError: As `headrace.streams.kafka_properties.translate`.
    """
    settings = translate(properties, file=file)
    group, client = settings.group, settings.client
    session_s = _seconds(group["session_timeout_ms"])
    return {
        "broker": ";".join(f"kafka://{server}" for server in settings.bootstrap),
        "broker_credentials": _credentials(client),
        "broker_session_timeout": session_s,
        "broker_heartbeat_interval": _seconds(group["heartbeat_interval_ms"]),
        # Faust refuses a request timeout below the session's.
        "broker_request_timeout": max(settings.request_timeout_s, session_s),
        "consumer_auto_offset_reset": "earliest",
        "producer_max_request_size": settings.producer["max_request_size"],
        "topic_partitions": partitions,
    }


def _seconds(ms: object) -> float:
    return int(str(ms)) / 1_000


def _credentials(client: Mapping[str, Any]) -> Any:
    context = client.get("ssl_context")
    if "sasl_mechanism" in client:
        return faust.SASLCredentials(
            username=client["sasl_plain_username"],
            password=client["sasl_plain_password"],
            mechanism=client["sasl_mechanism"],
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context)


class _Schema(faust.Schema):  # type: ignore[misc]  # Faust has no types where it is not installed
    """Reads and writes the records of one topic by their headers.

    Attributes:
        topic: Its name.
    """

    def __init__(
        self,
        topic: str,
        content_type: str,
        read: Callable[[Record], object],
        write: Callable[[Any, str], Written],
    ) -> None:
        super().__init__(key_type=bytes, key_serializer="raw")
        self.topic = topic
        self._content_type = content_type
        self._read = read
        self._write = write

    def loads_value(self, _app: Any, message: Any, **_options: Any) -> object:
        """Return what a record says; errors are values."""
        return self._read(message)

    def dumps_value(self, _app: Any, value: Any, *, headers: Any, **_options: Any) -> Any:
        """Return value and headers; those that a sender gives itself count. Bytes are a record that is passed on."""
        if value is None or isinstance(value, bytes):
            return value, headers
        given = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        names = {name for name, _ in given}
        written, own = self._write(value, self._content_type)
        return written, [header for header in own if header[0] not in names] + given


class ModelTopic(faust.Topic):  # type: ignore[misc]  # as above
    """A topic of a model: Headrace's to create, and its records have the key that they need."""

    async def declare(self) -> None:
        """Create nothing but the topics that streams of this one are repartitioned through."""
        if self.topics != [self.schema.topic]:
            await super().declare()

    def as_future_message(
        self, key: Any = None, value: Any = None, *more: Any, **options: Any
    ) -> Any:
        """Give a record its key where the sender gives none."""
        if key is None:
            key = key_of(value)
        return super().as_future_message(key, value, *more, **options)


class Pipeline:
    """See the module's docstring."""

    def __init__(
        self,
        app: Any,
        kafka: str | Mapping[str, str] | Log,
        topology: Topology = Topology(),  # noqa: B008  # frozen
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        claims: Claims | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            app: A `faust.App`.
            kafka: Its Kafka, as `headrace.streams.client.Client` takes it.
            topology: Names of topics.
            timeout_s: Seconds that a call of `infer` may take, unless it says so itself.
            max_in_flight: Calls that may be open at once; further ones wait for their turn.
            claims: Open store of values that no record can hold; without it such calls are refused.
        """
        self._topology = topology
        self._asking = _Asking(
            app,
            lambda: Client(
                kafka,
                prefix=topology.prefix,
                timeout_s=timeout_s,
                max_in_flight=max_in_flight,
                claims=claims,
            ),
        )

    def requests(self, model: str, content_type: str = AVRO) -> ModelTopic:
        """Return a model's requests topic: values are `headrace.schemas.infer.InferRequest`, or an `InferError`.

        A sender's ``headers`` say what a request cannot (``reply-topic``, ``deadline-ms``, ``idempotency-key``, …). The
        key is the sequence id, as bytes; leave it to the topic.

        Args:
            model: Model name.
            content_type: How values are written; records are read by their own.

        Raises:
            ConfigError: No such content type here, or the model's name needs a mapping.
        """
        name = self._topology.requests(model)
        return self._topic(_Schema(name, _known(content_type), read_request, write_request))

    def results(self, model: str, content_type: str = AVRO) -> ModelTopic:
        """Return a model's results topic: values are `headrace.schemas.infer.InferResponse`, or an `InferError`.

        Args:
            model: Model name.
            content_type: How values are written; records are read by their own.

        Raises:
            ConfigError: As `requests`.
        """
        name = self._topology.results(model)
        return self._topic(_Schema(name, _known(content_type), read_result, write_result))

    def _topic(self, schema: _Schema) -> ModelTopic:
        return ModelTopic(self._asking.app, topics=[schema.topic], schema=schema)

    async def infer(self, model: str, inputs: Inputs, **options: Unpack[Options]) -> Answer:
        """Ask a model over its requests topic and await its answer, as `headrace.streams.client.Client.infer` does.

        The first call connects, within its own ``timeout_s``.

        Raises:
            InferError: Of whatever kind the call ended with.
        """
        loop = asyncio.get_running_loop()
        timeout_s = options.get("timeout_s")
        began_s = loop.time()
        client = await self.client(timeout_s)
        if timeout_s is not None:
            options["timeout_s"] = max(0.0, timeout_s - (loop.time() - began_s))
        return await client.infer(model, inputs, **options)

    async def client(self, timeout_s: float | None = None) -> Client:
        """Return the app's own client, for what else it can do; it is open as long as the app runs.

        Args:
            timeout_s: Seconds that the connection may take; None is as long as the brokers are waited for anyway.

        Raises:
            Unavailable: The app does not run, or there is no connection.
            DeadlineExceeded: There is none in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._asking.client()
        except TimeoutError:
            raise expired() from None


def _known(content_type: str) -> str:
    if content_type not in CONTENT_TYPES:
        raise ConfigError(
            f"expected one of {', '.join(CONTENT_TYPES)}", field="content_type", value=content_type
        )
    return content_type


class _Asking(mode.Service):  # type: ignore[misc]  # as above
    """Keeps a client open as a part of the app: brokers that cannot be used end the app, and the app's stop ends it.

    The client lives in a task of its own, for whoever opens it is cancelled when a loop of its fails, and agents come
    and go.

    Attributes:
        app: Whose part it is.
    """

    def __init__(self, app: Any, make: Callable[[], Client]) -> None:
        """Keep the app, and what makes a client."""
        self.app = app
        self._make = make
        self._opened: asyncio.Future[Client] | None = None
        self._running: asyncio.Future[None] | None = None
        super().__init__()

    async def client(self) -> Client:
        """Return the client; the first call opens it.

        Raises:
            Unavailable: It cannot be opened, or is closed.
        """
        if self._opened is None:
            await self.app.add_runtime_dependency(self)
        if self._opened is None:
            raise Unavailable("the Faust app does not run, so it can ask no model")
        return await asyncio.shield(self._opened)

    async def on_start(self) -> None:
        """Begin to open."""
        self._end = asyncio.Event()
        self._opened = asyncio.get_running_loop().create_future()
        self._running = self.add_future(self._run(self._opened))

    async def on_stop(self) -> None:
        """Refuse what is open, and take our word back from the status topic before connections close."""
        if self._running is None or self._opened is None:
            return
        self._end.set()
        if not self._opened.done():
            self._running.cancel()
        await asyncio.wait([self._running])

    async def _run(self, opened: asyncio.Future[Client]) -> None:
        error = Unavailable("the Faust app stops and asks no model", reason=Reason.DRAINING)
        try:
            async with self._make() as client:
                opened.set_result(client)
                await self._end.wait()
        except LogError as exc:
            error = Unavailable(exc.detail)
            raise
        finally:
            if not opened.done():
                opened.set_exception(error)
                opened.exception()  # nobody may be waiting for it any more
