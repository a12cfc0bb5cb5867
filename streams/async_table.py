"""Calls that were accepted with 202 and are answered later, as every gateway knows them (FAULTS B65).

Pure. Two records of one topic say it all: the acceptance, which the gateway writes that took the call, and the answer,
which the worker writes there as to any reply topic. Whoever reads the topic can answer a poll, also after a restart.
The table is bounded by number, by bytes and by time; what is dropped first is the oldest answer.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass

from headrace.schemas.headers import find_header
from headrace.schemas.record import CORRELATION_ID, MODEL_NAME, STATUS, TP, Out, Record

ID_BYTES = 16
"""Random bytes of an id: whoever can call may fetch answers by their ids, so nobody must guess one."""

_ID = re.compile(rb"[0-9a-f]{%d}" % (2 * ID_BYTES))


@dataclass(frozen=True, slots=True)
class AsyncBounds:
    """How many calls may be answered later, and for how long they and their answers are kept.

    Attributes:
        window_ms: How long a call may wait for its answer, and then its answer for its caller, ms.
        max_calls: Calls that are known at once, waiting or answered, of all gateways together.
        max_bytes: Bytes of answers that are kept.
    """

    window_ms: int = 3_600_000
    max_calls: int = 10_000
    max_bytes: int = 64 * 2**20


@dataclass(slots=True)
class AsyncCall:
    """One call.

    Attributes:
        id: By which its caller asks for it; the record's correlation id.
        model: Which it asks.
        at_ms: When it was accepted, ms since the epoch.
        deadline_ms: Until when it may wait for its answer.
        binary: How its outputs are to be shown over HTTP: name → in binary; ``""`` says it of all others.
        reply: Its answer, once it has come.
        is_gone: Its answer came and is not kept any more.
    """

    id: str
    model: str
    at_ms: int
    deadline_ms: int
    binary: dict[str, bool]
    reply: Record | None = None
    is_gone: bool = False

    @property
    def is_answered(self) -> bool:
        """Whether its answer has come."""
        return self.reply is not None or self.is_gone

    def is_binary(self, output: str) -> bool:
        """Whether an output is to be shown in binary."""
        return self.binary.get(output, self.binary.get("", False))


def new_id() -> str:
    """Return the id of a call."""
    return secrets.token_hex(ID_BYTES)


def is_id(text: str) -> bool:
    """Whether this can be the id of a call."""
    return text.isascii() and _ID.fullmatch(text.encode()) is not None


def acceptance(tp: TP, call: AsyncCall) -> Out:
    """Return the record that says that a call was accepted; its answer goes to the same partition."""
    said = {"at_ms": call.at_ms, "deadline_ms": call.deadline_ms, "binary": call.binary}
    key = call.id.encode()
    headers = ((CORRELATION_ID, key), (MODEL_NAME, call.model.encode()))
    return Out(tp.topic, tp.partition, key, json.dumps(said).encode(), headers)


def _accepted(record: Record, id_: str) -> AsyncCall | None:
    """Read such a record; None where it is none, so that a stranger's record harms nobody."""
    try:
        said = json.loads(record.value or b"")
        model = (find_header(record.headers, MODEL_NAME) or b"").decode()
        binary = {str(name): bool(flag) for name, flag in said["binary"].items()}
        return AsyncCall(id_, model, int(said["at_ms"]), int(said["deadline_ms"]), binary)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class AsyncTable:
    """The calls that are known; see the module's docstring.

    Attributes:
        size: Bytes of the answers that are kept.
        dropped: Answers and calls that were dropped before their time.
    """

    def __init__(self, bounds: AsyncBounds) -> None:
        """Start with none."""
        self.size = 0
        self.dropped = 0
        self._bounds = bounds
        self._calls: OrderedDict[str, AsyncCall] = OrderedDict()  # in the order of acceptance
        self._answered: OrderedDict[str, AsyncCall] = OrderedDict()  # in the order of answers
        self._kept: deque[AsyncCall] = deque()  # the same, without those that are gone

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self._calls)

    def __repr__(self) -> str:
        """Show the numbers."""
        return f"AsyncTable({self.waiting} waiting, {len(self._answered)} answered, {self.size} bytes)"

    @property
    def waiting(self) -> int:
        """Calls without an answer."""
        return len(self._calls) - len(self._answered)

    @property
    def is_full(self) -> bool:
        """Whether as many calls wait as may be known; answers make room."""
        return self.waiting >= self._bounds.max_calls

    def find(self, id_: str, now_ms: int) -> AsyncCall | None:
        """Return a call, None where it is not known, or not any more."""
        self._forget(now_ms)
        return self._calls.get(id_)

    def apply(self, record: Record, now_ms: int) -> None:
        """Take in a record of the topic: an acceptance, an answer, or a stranger's, which says nothing."""
        id_ = (find_header(record.headers, CORRELATION_ID) or b"").decode("ascii", "replace")
        if not is_id(id_):
            return
        if find_header(record.headers, STATUS) is not None:
            self._answer(id_, record)
        elif (call := _accepted(record, id_)) is not None:
            self.add(call)
        self._forget(now_ms)

    def add(self, call: AsyncCall) -> AsyncCall:
        """Know a call, and return what is known under its id: the first that came."""
        known = self._calls.setdefault(call.id, call)
        if len(self._calls) > self._bounds.max_calls:
            first = next(iter(self._answered or self._calls))
            self._drop(first)
            self.dropped += 1
        return known

    def _answer(self, id_: str, record: Record) -> None:
        call = self._calls.get(id_)
        if call is None or call.is_answered:
            return  # at least once, an answer may come again, and is equal (DELIVERY P-16)
        call.reply = record
        self._answered[id_] = call
        self._kept.append(call)
        self.size += _size(record)
        while self.size > self._bounds.max_bytes:
            self._let_go(self._kept[0])
            self.dropped += 1

    def _let_go(self, call: AsyncCall) -> None:
        """Keep an answer no more."""
        assert call.reply is not None
        self._kept.remove(call)  # nearly always the first
        self.size -= _size(call.reply)
        call.reply, call.is_gone = None, True

    def _drop(self, id_: str) -> None:
        call = self._calls.pop(id_)
        self._answered.pop(id_, None)
        if call.reply is not None:
            self._let_go(call)

    def _forget(self, now_ms: int) -> None:
        """Drop what is older than the topic keeps it."""
        limit = now_ms - 2 * self._bounds.window_ms
        while self._calls and (call := next(iter(self._calls.values()))).at_ms < limit:
            self._drop(call.id)


def _size(record: Record) -> int:
    headers = sum([len(name) + len(value) for name, value in record.headers])
    return len(record.value or b"") + headers
