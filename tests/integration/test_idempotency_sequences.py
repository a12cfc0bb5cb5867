"""Idempotency keys of sequences: a repeated step is answered and steps nothing (DELIVERY P-17)."""

from __future__ import annotations

import asyncio

import pytest
from headrace.schemas.errors import BackendError, Retriable
from headrace.schemas.record import TP
from headrace.streams.memory import MemoryLog
from keyed_kit import (
    PLACES,
    Place,
    Summing,
    call,
    gateway,
    header,
    in_flight,
    metric,
    record,
    sums,
    value_of,
    worker,
)
from service_kit import Gate, Tap, until


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    """Each log and guarantee in turn."""
    kind, mode = request.param
    broker = {} if kind == "memory" else request.getfixturevalue(f"{kind}_properties")
    return Place(kind, mode, broker, tmp_path / "models", model=sums())


def step(value, key="", *, of=7, start=False, end=False):
    """Say what a step's record is made of."""
    return {
        "value": value,
        "key": key,
        "sequence_id": of,
        "sequence_start": start,
        "sequence_end": end,
    }


async def answers_of(place, service, tap, *steps):
    """Send steps and return their answers in order."""
    outs = [record(service.topology, one.pop("value"), one.pop("key"), **one) for one in steps]
    sources = await place.send(service, *outs)
    await tap.answered(sources)
    return [tap.by_source()[source][-1] for source in sources]


def tapped(service):
    """Read the model's results."""
    return Tap(service.log, service.topology.results("m"))


async def test_P17_a_repeated_step_is_answered_and_steps_nothing(place):
    """In one block with what it repeats, and later; START does not start anew, END is answered after the end."""
    backend = Summing()
    async with place.worker(backend) as service, tapped(service) as tap:
        found = await answers_of(
            place,
            service,
            tap,
            step(1, "a", start=True),
            step(2, "b"),
            step(1, "a", start=True),
            step(2, "b"),
            step(4, "c"),
        )
        found += await answers_of(
            place,
            service,
            tap,
            step(2, "b"),
            step(8, "d", end=True),
            step(8, "d", end=True),
            step(1, "a", start=True),
        )
        assert [value_of(answer) for answer in found] == [1, 3, 1, 3, 7, 3, 15, 15, 1]
        repeats = [header(answer, "replayed") for answer in found]
        assert repeats == [None, None, *[b"true"] * 2, None, b"true", None, b"true", b"true"]
        assert backend.count == 4
        assert metric(service, "headrace_replayed_requests_total") == 5
        refused = service.worker.registry.get_sample_value(
            "headrace_refused_requests_total", {"model": "m", "reason": "invalid_request"}
        )
        assert not refused, "a repeat is no refusal"
        await until(lambda: service.settled("m"), "everything is settled")
        assert service.worker.models["m"].sequences.keyed.keys.flying == 0


async def test_P17_a_repeat_in_flight_is_answered_in_its_turn(place):
    """Behind the step that it repeats, and before the steps behind it (P-18)."""
    gate = Gate()
    backend = Summing(gate)
    async with place.worker(backend) as service, tapped(service) as tap:
        outs = [
            record(service.topology, 1, "a", sequence_id=7, sequence_start=True),
            record(service.topology, 1, "a", sequence_id=7, sequence_start=True),
            record(service.topology, 2, "b", sequence_id=7),
        ]
        sources = await place.send(service, *outs)
        await until(lambda: in_flight(service) == 3, "all were read")
        gate.open(2)
        await tap.answered(sources)
        order = [header(answer, "source").decode() for answer in tap.records]
        assert order == sources
        assert [value_of(answer) for answer in tap.records] == [1, 1, 3]
        assert backend.count == 2


async def test_P17_a_step_with_a_used_key_and_other_content_is_refused(place):
    """And the sequence goes on; another sequence has keys of its own."""
    backend = Summing()
    async with place.worker(backend) as service, tapped(service) as tap:
        found = await answers_of(
            place,
            service,
            tap,
            step(1, "a", start=True),
            step(2, "a"),
            step(1, "a", of=9, start=True),
            step(2, "b"),
            step(3, "b"),
        )
        assert [header(a, "reason") for a in found] == [
            *(None, b"idempotency_key_reused", None, None),
            b"idempotency_key_reused",
        ]
        assert [value_of(found[n]) for n in (0, 2, 3)] == [1, 1, 3]
        assert backend.count == 3


@pytest.mark.parametrize("ends", [False, True], ids=["live", "ended"])
async def test_P17_keys_live_in_the_snapshot_and_move_with_it(place, ends):
    """The next owner answers repeats of what the one before has answered, also of a sequence that has ended."""
    first, second = Summing(), Summing()
    steps = [(1, "a", True, False), (2, "b", False, False), (4, "c", False, ends)]
    async with place.worker(first) as service, tapped(service) as tap:
        topology = service.topology
        sent = [step(v, k, start=s, end=e) for v, k, s, e in steps]
        found = await answers_of(place, service, tap, *sent)
        assert [value_of(answer) for answer in found] == [1, 3, 7]
    async with place.worker(second, topology=topology) as service, tapped(service) as tap:
        sent = [step(v, k, start=s, end=e) for v, k, s, e in steps]
        found = await answers_of(place, service, tap, *sent, step(8, "d"))
        assert [value_of(answer) for answer in found[:3]] == [1, 3, 7]
        assert [header(answer, "replayed") for answer in found[:3]] == [b"true"] * 3
        if ends:
            assert header(found[3], "reason") == b"sequence_unknown"
        else:
            assert value_of(found[3]) == 15
        assert second.count == (not ends)


async def test_P17_a_sequence_that_was_silent_for_too_long_keeps_its_keys(tmp_path):
    """Silence is the usual reason of a repeat."""
    backend = Summing()
    place = Place("memory", PLACES[0].values[0][1], {}, tmp_path, model=sums(0.3))
    async with (
        place.worker(backend, sequence_skew_s=0.1) as service,
        tapped(service) as tap,
        gateway(service) as url,
    ):
        await answers_of(place, service, tap, step(1, "a", start=True), step(2, "b"))
        counts = service.worker.models["m"].sequences.sequences.counts
        await until(lambda: counts.expired == 1, "it is expired")
        found = await answers_of(place, service, tap, step(2, "b"), step(3, "c"))
        assert value_of(found[0]) == 3
        assert header(found[1], "reason") == b"sequence_expired"
        again = await call(url, 2, "b", parameters={"sequence_id": 7})
        assert (again.status, again.value, again.is_replayed) == (200, 3, True)
    topology = service.topology
    async with (
        place.worker(backend, topology=topology) as service,
        tapped(service) as tap,
    ):
        (found,) = await answers_of(place, service, tap, step(2, "b"))
        assert value_of(found) == 3
        assert backend.count == 2


async def test_P17_a_sequence_remembers_its_last_keys(place):
    """Beyond the bound the oldest goes; it is counted, and its repeat is a step like any other."""
    backend = Summing()
    bounds = {"max_sequence_keys": 2}
    async with place.worker(backend, **bounds) as service, tapped(service) as tap:
        steps = [step(1, "a", start=True), *[step(1, key) for key in "bcd"]]
        found = await answers_of(place, service, tap, *steps)
        found += await answers_of(place, service, tap, step(1, "d"), step(1, "b"))
        assert [value_of(answer) for answer in found] == [1, 2, 3, 4, 4, 5]
        assert metric(service, "headrace_remembered_answers") == 2
        assert metric(service, "headrace_forgotten_answers_total") == 3


@pytest.mark.parametrize(
    ("error", "is_kept"), [(BackendError("no"), True), (Retriable("no"), False)]
)
async def test_P17_a_failed_step_is_repeated_as_its_error_says(place, error, is_kept):
    """A lasting error is the answer; one that may pass is not kept, and the repeat steps."""
    failing = [False]

    def play(_):
        if failing[0]:
            raise error

    backend = Summing(play)
    async with place.worker(backend, max_attempts=1) as service, tapped(service) as tap:
        await answers_of(place, service, tap, step(1, "a", start=True))
        failing[0] = True
        (failed,) = await answers_of(place, service, tap, step(2, "b"))
        failing[0] = False
        again, after = await answers_of(place, service, tap, step(2, "b"), step(4, "c"))
        assert header(failed, "status") == b"INTERNAL"
        assert header(again, "replayed") == (b"true" if is_kept else None)
        if is_kept:
            assert header(again, "reason") == header(failed, "reason")
            assert value_of(after) == 5
        else:
            assert (value_of(again), value_of(after)) == (3, 7)


async def test_P17_calls_of_a_sequence_repeat_over_HTTP(place):
    """As a client does whose gateway did not answer."""
    backend = Summing()
    async with (
        place.worker(backend) as service,
        gateway(service) as url,
        gateway(service) as other,
    ):
        begin = {"sequence_id": 7, "sequence_start": True}
        more = {"sequence_id": 7}
        assert (await call(url, 1, "a", parameters=begin)).value == 1
        assert (await call(other, 1, "a", parameters=begin)).value == 1
        both = await asyncio.gather(
            call(url, 2, "b", parameters=more), call(other, 2, "b", parameters=more)
        )
        assert {answer.value for answer in both} == {3}
        assert {answer.is_replayed for answer in both} == {False, True}
        refused = await call(url, 9, "b", parameters=more)
        assert refused.status == 422
        assert (await call(url, 4, parameters=more)).value == 7
        assert backend.count == 3


async def test_P17_without_a_window_a_step_with_a_key_is_refused(tmp_path):
    """And steps nothing."""
    backend = Summing()
    async with (
        MemoryLog() as log,
        worker(log, tmp_path, backend, model=sums(), idempotency_window_s=0.0) as service,
        gateway(service) as url,
    ):
        begin = {"sequence_id": 7, "sequence_start": True}
        refused = await call(url, 1, "a", parameters=begin)
        assert refused.status == 501
        assert "answers of model 'm' are not remembered" in refused.body["error"]
        assert (await call(url, 1, parameters=begin)).value == 1
        requests = log.existing(TP(service.topology.requests("m"), 0))
        assert requests.end + log.existing(TP(service.topology.requests("m"), 1)).end == 2
