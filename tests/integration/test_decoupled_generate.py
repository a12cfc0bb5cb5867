"""The generate routes of a decoupled model, with a worker that runs (SEMANTICS §2.9)."""

from __future__ import annotations

import json

import pytest
from decoupled_kit import decoupled
from service_kit import Service, until


async def generate(service: Service, kind: str, body: object, **headers: str):
    """Post to a generate route; returns status, content type and text."""
    data = body if isinstance(body, (str, bytes)) else json.dumps(body)
    async with service.session.post(
        f"/v2/models/m/{kind}", data=data, headers=headers
    ) as response:
        return response.status, response.headers["Content-Type"], await response.text()


def events(text: str) -> list[dict[str, object]]:
    """Return the JSON of each event; nothing else may stand in the stream."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


async def test_GN05_generate_stream_sends_an_event_for_each_response(tmp_path):
    """Also GN-03: one element is a scalar; GN-06 and DC-02: an empty end is no event."""
    async with decoupled(tmp_path, responses="each", empty_final="true") as service:
        body = {"INPUT0": [4, 5], "id": "mine"}
        status, kind, text = await generate(service, "generate_stream", body)
        assert (status, kind) == (200, "text/event-stream; charset=utf-8")
        common = {"id": "mine", "model_name": "m", "model_version": "1"}
        assert events(text) == [{**common, "OUTPUT0": 4}, {**common, "OUTPUT0": 5}]
        assert await generate(service, "generate_stream", {"INPUT0": []}) == (200, kind, "")


async def test_GN04_generate_wants_exactly_one_response(tmp_path):
    """One, whether its end comes alone or not; none and two are errors, the second cancels the rest."""
    async with decoupled(tmp_path, responses="each", empty_final="true") as service:
        status, kind, text = await generate(service, "generate", {"INPUT0": 4})
        assert (status, kind, json.loads(text)["OUTPUT0"]) == (200, "application/json", 4)
        for elements in ([], [4, 5]):
            status, kind, text = await generate(service, "generate", {"INPUT0": elements})
            assert (status, kind) == (500, "application/json")
            assert "generate expects model to produce exactly 1 response" in text
        assert service.gateway.open_calls == 0


@pytest.mark.parametrize("at", [0, 1])
async def test_GN05_the_first_response_fixes_the_status(tmp_path, at):
    """An error first is a plain answer with its code; behind a response it is an event."""
    async with decoupled(tmp_path, responses="each", response_error_at=str(at)) as service:
        status, kind, text = await generate(service, "generate_stream", {"INPUT0": [1, 2, 3]})
        if at == 0:
            assert (status, kind) == (500, "application/json")
            assert "response 0" in json.loads(text)["error"]
        else:
            assert status == 200
            value, error = events(text)
            assert value["OUTPUT0"] == 1
            assert list(error) == ["error"]


async def test_GN06_closing_the_connection_cancels(tmp_path):
    """CX-01: the client has an event and goes; the model stops, and nothing stays open."""
    async with decoupled(tmp_path, responses="1000", response_delay_ms="5") as service:
        async with service.session.post(
            "/v2/models/m/generate_stream", data='{"INPUT0": 1}'
        ) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        await until(lambda: service.gateway.abandoned == 1, "the close was noticed")
        await until(lambda: service.settled("m"), "the model stopped")
        assert service.gateway.open_calls == 0
        assert service.counts("m").failure["CANCELED"] == 1


async def test_P17_generate_tells_of_replays_and_the_model_runs_once(tmp_path):
    """The same events for the same Idempotency-Key, and a header that says so; GN-06 for both routes."""
    text = {"responses": "each", "idempotency_window_ms": "3600000"}
    async with decoupled(tmp_path, **text) as service:
        for kind, body in (
            ("generate_stream", '{"INPUT0": [4, 5]}'),
            ("generate", '{"INPUT0": 6}'),
        ):
            answers = []
            for _ in range(2):
                async with service.session.post(
                    f"/v2/models/m/{kind}", data=body, headers={"Idempotency-Key": kind}
                ) as response:
                    assert response.status == 200
                    replayed = response.headers.get("Idempotency-Replayed")
                    answers.append((replayed, await response.text()))
            (first, one), (second, other) = answers
            assert (first, second, one) == (None, "true", other)
        assert len(service.model("m").executions) == 2
