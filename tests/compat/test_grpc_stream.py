"""SEMANTICS §2.10: streams over gRPC, GR-02, GR-03 and GR-05."""

import queue

import grpc as grpc_core
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from compat_kit import add_sub, given
from compat_models import FAULT
from compat_rules import NEWER, rule, since
from tritonclient.utils import InferenceServerException


def repeated(value, count, module=tritonclient.grpc):
    """Return the inputs of ``repeat``."""
    return [
        given(module, name, np.array([number], np.int32), "INT32")
        for name, number in (("INPUT0", value), ("COUNT", count))
    ]


class Stream:
    """A stream of tritonclient whose answers are taken one by one."""

    def __init__(self, client, **options):
        self.client = client
        self.answers = queue.Queue()
        client.start_stream(lambda result, error: self.answers.put((result, error)), **options)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.client.stop_stream(cancel_requests=exc[0] is not None)

    def ask(self, model, inputs, **how):
        """Send one request."""
        self.client.async_stream_infer(model, inputs, **how)

    def take(self):
        """Return the next result; it must be one."""
        result, error = self.answers.get(timeout=20)
        assert error is None, error.message()
        return result

    def refused(self):
        """Return the next error; it must be one."""
        result, error = self.answers.get(timeout=20)
        assert result is None
        return error


def is_final(result):
    """Return the parameter of GR-03."""
    parameter = result.get_response().parameters["triton_final_response"]
    assert parameter.WhichOneof("parameter_choice") == "bool_param"
    return parameter.bool_param


def value_of(result):
    return result.as_numpy("OUTPUT0").ravel().tolist()


@rule("GR-03")
def test_requests_of_one_stream_are_answered_with_their_ids(grpc):
    with Stream(grpc) as stream:
        for number in range(5):
            tensor = given(tritonclient.grpc, "INPUT0", np.array([[number]], np.float32), "FP32")
            stream.ask("echo", [tensor], request_id=str(number))
        found = [stream.take() for _ in range(5)]
    values = {result.get_response().id: value_of(result) for result in found}
    assert values == {str(number): [number] for number in range(5)}
    assert all(is_final(result) for result in found)


@rule("GR-03")
@pytest.mark.parametrize("count", [1, 3])
def test_a_decoupled_model_answers_many_times(grpc, count):
    with Stream(grpc) as stream:
        stream.ask("repeat", repeated(7, count), request_id="r")
        found = [stream.take() for _ in range(count)]
        stream.ask("repeat", repeated(8, 1), request_id="s")
        found.append(stream.take())
    assert [value_of(result) for result in found] == [[7]] * count + [[8]]
    assert [result.get_response().id for result in found] == ["r"] * count + ["s"]
    assert not any(is_final(result) for result in found[: count - 1])


@rule("GR-03")
@pytest.mark.parametrize("count", [0, 2])
def test_the_empty_final_response_is_for_those_who_ask(grpc, count):
    with Stream(grpc) as stream:
        stream.ask("repeat", repeated(7, count), enable_empty_final_response=True)
        found = [stream.take()]
        while not is_final(found[-1]):
            found.append(stream.take())
    with_data = [result for result in found if result.get_response().outputs]
    assert len(with_data) == count
    assert len(found) in (count, count + 1)


@rule("GR-03")
def test_without_responses_nothing_comes(grpc):
    """DC-02: the next request's answer is the first thing that is heard."""
    with Stream(grpc) as stream:
        stream.ask("repeat", repeated(7, 0))
        stream.ask("repeat", repeated(9, 1))
        assert value_of(stream.take()) == [9]


@rule("GR-02", "PB-33")
def test_an_error_leaves_the_stream_open(grpc):
    with Stream(grpc) as stream:
        stream.ask("nobody", repeated(1, 1))
        assert "unknown model: 'nobody'" in stream.refused().message()
        stream.ask("simple", add_sub(tritonclient.grpc)[:1])
        assert "expected 2 inputs but got 1" in stream.refused().message()
        stream.ask("repeat", repeated(7, 1))
        assert value_of(stream.take()) == [7]


@rule("GR-02")
def test_an_error_in_the_middle_comes_after_what_was_good(grpc):
    with Stream(grpc) as stream:
        stream.ask("late", repeated(6, 5))
        assert [value_of(stream.take()) for _ in range(2)] == [[6], [6]]
        assert "scripted error" in stream.refused().message()
        stream.ask("repeat", repeated(7, 1))
        assert value_of(stream.take()) == [7]


@rule("GR-02")
def test_a_stream_that_wants_statuses_ends_with_one(grpc):
    with Stream(grpc, headers={"triton_grpc_error": "true"}) as stream:
        stream.ask("repeat", repeated(FAULT, 1))
        error = stream.refused()
        assert error.status() == "StatusCode.INTERNAL"
        assert "scripted error" in error.message()


@rule("PB-70", "GR-03")
def test_a_sequence_in_a_stream(grpc):
    with Stream(grpc) as stream:
        for turn, value in enumerate([5, 7, 11]):
            stream.ask(
                "total",
                [given(tritonclient.grpc, "INPUT0", np.array([[value]], np.int32), "INT32")],
                sequence_id=2_468,
                sequence_start=turn == 0,
                sequence_end=turn == 2,
            )
        assert [value_of(stream.take()) for _ in range(3)] == [[5], [12], [23]]


@rule("GR-05")
@since(NEWER)  # the python backend of 2.51 may end on many responses at once
def test_a_cancelled_stream_leaves_the_server_well(grpc):
    stream = Stream(grpc)
    stream.ask("repeat", repeated(7, 50))
    stream.take()
    grpc.stop_stream(cancel_requests=True)
    with Stream(grpc) as again:
        again.ask("repeat", repeated(8, 1))
        assert value_of(again.take()) == [8]


@rule("GR-03", "GR-02")
async def test_the_asyncio_client_streams(target):
    async with tritonclient.grpc.aio.InferenceServerClient(target.grpc) as client:

        async def requests():
            for value, model in ((7, "repeat"), (8, "nobody"), (9, "repeat")):
                yield {"model_name": model, "inputs": repeated(value, 2), "request_id": str(value)}

        found, errors = [], []
        async for result, error in client.stream_infer(requests()):
            if error is None:
                found.append((result.get_response().id, value_of(result)))
            else:
                errors.append(error.message())
    assert sorted(found) == [("7", [7]), ("7", [7]), ("9", [9]), ("9", [9])]
    assert len(errors) == 1
    assert "nobody" in errors[0]


@rule("GR-05")
@since(NEWER)  # the python backend of 2.51 may end on many responses at once
async def test_a_cancelled_asyncio_stream(target):
    async with tritonclient.grpc.aio.InferenceServerClient(target.grpc) as client:

        async def requests():
            yield {"model_name": "repeat", "inputs": repeated(7, 50)}

        answers = client.stream_infer(requests())
        async for result, error in answers:
            assert error is None
            assert value_of(result) == [7]
            break
        assert answers.cancel()
        result = await client.infer("simple", add_sub(tritonclient.grpc), outputs=None)
        assert result.as_numpy("OUTPUT0") is not None


@rule("PB-34", "GR-01")
async def test_the_asyncio_client_infers(target):
    async with tritonclient.grpc.aio.InferenceServerClient(target.grpc) as client:
        assert await client.is_server_ready()
        assert await client.is_model_ready("echo")
        result = await client.infer("simple", add_sub(tritonclient.grpc))
        assert value_of(result) == list(range(1, 17))
        with pytest.raises(InferenceServerException, match="expected 2 inputs") as caught:
            await client.infer("simple", add_sub(tritonclient.grpc)[:1])
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert grpc_core.StatusCode.INVALID_ARGUMENT
