"""Fixtures for all tests: the three logs, a clock that is moved by hand, names that are used once."""

import gc
import itertools
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager

import brokers
import pytest
import schedule
from headrace.streams.kafka import KafkaLog
from headrace.streams.log import Log, Mode
from headrace.streams.memory import MemoryLog

# Short timings, so that crashes and joins do not take a test's whole time.
KAFKA_PROPERTIES = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    "fetch.max.wait.ms": "100",
    "request.timeout.ms": "10000",
}
# It answers a join after half the session timeout.
EMBEDDED_PROPERTIES = {
    "session.timeout.ms": "2000",
    "heartbeat.interval.ms": "300",
    "request.timeout.ms": "10000",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the long ones begin; among those of a folder the order stays random."""
    items.sort(key=schedule.place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> schedule.Schedule | None:
    """Take the order as it is for ``--dist loadfile``, where xdist would let the fewest tests run last."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return schedule.Schedule(config, log)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over thousands of tests that stay: with them, it takes a third of a storm."""
    gc.collect()
    gc.freeze()


class Clock:
    """A clock that only moves when told."""

    def __init__(self, now_ns: int = 0) -> None:
        """Start at ``now_ns``."""
        self.now_ns = now_ns

    def __call__(self) -> int:
        """Return now, in nanoseconds."""
        return self.now_ns

    def advance_ms(self, ms: float) -> int:
        """Move on and return now."""
        self.now_ns += int(ms * 1_000_000)
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    """A clock at 0 that only moves when told."""
    return Clock()


@pytest.fixture(scope="session")
def embedded_properties() -> Iterator[Mapping[str, str]]:
    """Client properties of an embedded broker that this session runs."""
    with brokers.embedded_broker() as properties:
        yield {**properties, **EMBEDDED_PROPERTIES}


@pytest.fixture(scope="session")
def kafka_properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Client properties of an Apache Kafka: HEADRACE_TEST_BOOTSTRAP's, or a node that this session runs.

    Without Java the tests are skipped, and fail where CI=true.
    """
    given = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if given:
        yield {"bootstrap.servers": given, **KAFKA_PROPERTIES}
        return
    try:
        node = brokers.KafkaNode(tmp_path_factory.mktemp("kafka"))
    except brokers.Unavailable as missing:
        brokers.lacking(
            f"no Apache Kafka: {missing}; set HEADRACE_TEST_BOOTSTRAP to use another one"
        )
    node.start()
    yield {"bootstrap.servers": node.bootstrap, **KAFKA_PROPERTIES}
    node.stop()


LOGS = [
    pytest.param("memory", id="memory"),
    pytest.param("embedded", id="embedded", marks=pytest.mark.embedded),
    pytest.param("kafka", id="kafka", marks=pytest.mark.kafka),
]


class Logs:
    """Opens logs of one kind on the same broker: two processes are two logs, unless they are in memory."""

    def __init__(self, kind: str, properties: Mapping[str, str]) -> None:
        """Keep what kind they are."""
        self.kind = kind
        self.properties = properties
        self._memory: MemoryLog | None = None

    @asynccontextmanager
    async def open(self, **options) -> AsyncIterator[Log]:
        """Open a log; options are those that both kinds take, and ``max_record_bytes``."""
        limit = options.pop("max_record_bytes", None)
        if self.kind == "memory":
            if self._memory is None:
                more = {} if limit is None else {"max_record_bytes": limit}
                self._memory = MemoryLog(**options, **more)
            async with self._memory as log:
                yield log
            return
        more = {} if limit is None else {"max.request.size": str(limit)}
        async with KafkaLog({**self.properties, **more}, **options) as log:
            yield log


@pytest.fixture(params=LOGS)
def logs(request: pytest.FixtureRequest) -> Logs:
    """Each of the three kinds of log in turn."""
    kind = request.param
    broker = {} if kind == "memory" else request.getfixturevalue(f"{kind}_properties")
    return Logs(kind, broker)


IN_MODES = [
    pytest.param(("memory", Mode.AT_LEAST_ONCE), id="memory-at_least_once"),
    pytest.param(("memory", Mode.EXACTLY_ONCE), id="memory-exactly_once"),
    pytest.param(
        ("embedded", Mode.AT_LEAST_ONCE), id="embedded-at_least_once", marks=pytest.mark.embedded
    ),
    pytest.param(("kafka", Mode.AT_LEAST_ONCE), id="kafka-at_least_once", marks=pytest.mark.kafka),
    pytest.param(("kafka", Mode.EXACTLY_ONCE), id="kafka-exactly_once", marks=pytest.mark.kafka),
]


@pytest.fixture(params=IN_MODES)
def logs_in_modes(request: pytest.FixtureRequest) -> tuple[Logs, Mode]:
    """Each kind of log with each guarantee that it can give."""
    kind, mode = request.param
    broker = {} if kind == "memory" else request.getfixturevalue(f"{kind}_properties")
    return Logs(kind, broker), mode


@pytest.fixture
async def log(logs: Logs) -> AsyncIterator[Log]:
    """An open log that commits at each settle."""
    async with logs.open(commit_interval_ms=0) as log:
        yield log


_counter = itertools.count()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Make names that no other test uses: several sessions may share a broker."""

    def make(word: str) -> str:
        return f"{word}-{next(_counter)}-{uuid.uuid4().hex[:8]}"

    return make
