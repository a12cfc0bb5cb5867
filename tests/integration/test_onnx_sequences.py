"""Sequence models on ONNX Runtime: what SEMANTICS §5.4 says they compute, on models that the tests make."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx_models
import onnx_sequence_models as models
import pytest
from backend_kit import CPU, Arrays, completed, texts
from headrace.backends.backend import find_backend
from headrace.schemas.errors import BackendError, InferError, InvalidRequest
from headrace.schemas.infer import RequestedOutput, SequenceId
from headrace.schemas.tensor import Datatype, join_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_steps import Step, Steps, outputs_of
from wire_kit import raw

START = 'control_input [{ name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }] }]'
END = 'control_input [{ name: "END" control [{ kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] }] }]'
READY = 'control_input [{ name: "READY" control [{ kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] }] }]'
CORRID = 'control_input [{ name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s }] }]'
RESETTING = START.replace("int32_false_true: [0, 1]", "bool_false_true: [false, true]")
STATE = 'state [{ input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_%s dims: [%s] }]'
SPEECH = """
max_batch_size: 64
input [{ name: "input" data_type: TYPE_FP32 dims: [4] }]
output [{ name: "output" data_type: TYPE_FP32 dims: [1] }]
sequence_batching {
  oldest { max_candidate_sequences: 64 }
  state [{ input_name: "state" output_name: "stateN" data_type: TYPE_FP32 dims: [2, 4] }]
}
parameters { key: "batch_axis.state" value { string_value: "1" } }
parameters { key: "batch_axis.stateN" value { string_value: "1" } }
parameters { key: "constant.sr" value { string_value: "16000" } }
"""


def sequence_config(datatype: str, batching: str, *, rows: int = 8, dims: str = "1") -> str:
    """Write a configuration of INPUT and OUTPUT with a sequence batcher."""
    return f"""
        max_batch_size: {rows}
        input [{{ name: "INPUT" data_type: TYPE_{datatype} dims: [{dims}] }}]
        output [{{ name: "OUTPUT" data_type: TYPE_{datatype} dims: [{dims}] }}]
        sequence_batching {{ {batching} }}
    """


def load(directory: Path, model: onnx.ModelProto, text: str) -> Steps:
    """Load a model; return what feeds its one instance."""
    path = directory / "model.onnx"
    onnx.save_model(model, path)
    backend = find_backend("onnxruntime")
    config = completed(backend, path, text)
    loaded = backend.load(config, path)
    return Steps(config, loaded.instance("model_0_0", CPU), repeatable=loaded.repeatable)


def step(
    of: SequenceId, value: int, *, start: bool = False, end: bool = False, dtype: str = "<i4"
) -> Step:
    return Step(of, {"INPUT": np.array([[value]], dtype)}, start, end)


@pytest.mark.parametrize(
    ("datatype", "control", "dtype"),
    [("INT32", "int32_false_true: [0, 1]", "<i4"), ("FP32", "fp32_false_true: [0, 1]", "<f4")],
)
def test_SB05_onnx_sequence_is_told_of_start_and_ready(tmp_path, datatype, control, dtype) -> None:
    """INPUT + START; a padding row before the others shifts nothing."""
    controls = (START + READY).replace("int32_false_true: [0, 1]", control)
    steps = load(
        tmp_path,
        models.onnx_sequence(datatype),
        sequence_config(datatype, f"direct {{}} {controls}"),
    )
    first = steps.run(None, step(7, 11, start=True, dtype=dtype), None, step(8, 5, dtype=dtype))
    assert outputs_of(first) == [None, [12], None, [5]]


def test_the_values_of_simple_sequence(tmp_path) -> None:
    """§5.4: a leading 0 and 11, 7, 5, 3, 2, 0, 1 come back with 1 added to the first; one by one."""
    steps = load(
        tmp_path, models.onnx_sequence(), sequence_config("INT32", f"direct {{}} {START} {READY}")
    )
    values = [0, 11, 7, 5, 3, 2, 0, 1]
    found = [outputs_of(steps.run(step(1, v, start=i == 0)))[0] for i, v in enumerate(values)]
    assert found == [[1], [11], [7], [5], [3], [2], [0], [1]]


@pytest.mark.parametrize("batched", [True, False])
def test_SB06_a_model_without_batching_takes_controls_of_one_value(tmp_path, batched) -> None:
    """[1], or a scalar where the file says so; with batching [N] is as good as [N,1]."""
    dims = ["N"] if batched else []
    model = onnx_models.model(
        [
            onnx.helper.make_node("Cast", ["START"], ["one"], to=onnx.TensorProto.FLOAT),
            *(
                [onnx.helper.make_node("Unsqueeze", ["one", "last"], ["column"])]
                if batched
                else [onnx.helper.make_node("Identity", ["one"], ["column"])]
            ),
            onnx.helper.make_node("Add", ["INPUT", "column"], ["OUTPUT"]),
        ],
        [
            onnx.helper.make_tensor_value_info("INPUT", onnx.TensorProto.FLOAT, [*dims, 2]),
            onnx.helper.make_tensor_value_info("START", onnx.TensorProto.INT32, dims),
        ],
        [onnx.helper.make_tensor_value_info("OUTPUT", onnx.TensorProto.FLOAT, [*dims, 2])],
        {"last": np.array([1])} if batched else {},
    )
    text = sequence_config("FP32", f"direct {{}} {START}", rows=8 if batched else 0, dims="2")
    steps = load(tmp_path, model, text)
    x = np.array([5, 6], "<f4")
    given = [Step(i, {"INPUT": x[np.newaxis] if batched else x}, i == 1) for i in (1, 2)]
    if batched:
        assert outputs_of(steps.run(*given)) == [[6, 7], [5, 6]]
    else:
        assert [outputs_of(steps.run(one)) for one in given] == [[[6, 7]], [[5, 6]]]


@pytest.mark.parametrize(
    ("datatype", "sequence_id", "last"),
    [
        ("UINT64", 52, 45 + 52),
        ("INT64", 52, 45 + 52),
        ("UINT32", 2**32 + 52, 45 + 52),
        ("INT32", 2**32 + 52, 45 + 52),
        ("STRING", "52", 45 + 52),
    ],
)
def test_SQ14_dyna_sequence_adds_the_id_on_END(tmp_path, datatype, sequence_id, last) -> None:
    """Of 64 bits, truncated to 32, or as text; +1 on START, and padding rows have no id."""
    model = models.dyna_sequence("BYTES" if datatype == "STRING" else datatype)
    batching = f"direct {{}} {START} {END} {CORRID % datatype}"
    steps = load(tmp_path, model, sequence_config("INT32", batching))
    other = "9" if datatype == "STRING" else 9
    first = steps.run(step(sequence_id, 1, start=True), None, step(other, 3))
    assert outputs_of(first) == [[2], None, [3]]
    second = steps.run(None, step(sequence_id, 45, end=True), step(other, 4, start=True, end=True))
    assert outputs_of(second) == [None, [last], [4 + 1 + 9]]


@pytest.mark.parametrize("resets_itself", [False, True])
def test_SQ18_the_state_is_fresh_at_START(tmp_path, resets_itself) -> None:
    """§5.4: START → state = input, else state += input, whether the server or the model resets it."""
    batching = STATE % ("INT32", "1") + (RESETTING if resets_itself else "")
    steps = load(
        tmp_path, models.accumulator(start=resets_itself), sequence_config("INT32", batching)
    )
    turns = [(1, 10), (2, 20), (3, 30)]
    for i, (one, other) in enumerate(turns):
        found = outputs_of(steps.run(step("a", one, start=i == 0), step("b", other, start=i == 0)))
    assert found == [[6], [60]]
    assert outputs_of(steps.run(step("b", 1), step("a", 5, start=True))) == [[61], [5]]
    assert steps.state("a").tolist() == [5]


def test_SB08_a_model_starts_from_the_state_that_it_is_given(tmp_path) -> None:
    """Here +100, as in Triton's test with a file; what resets itself does not see it."""
    for name, resets_itself, expected in (("server", False, 107), ("model", True, 7)):
        directory = tmp_path / name
        directory.mkdir()
        batching = STATE % ("INT32", "1") + (RESETTING if resets_itself else "")
        steps = load(
            directory, models.accumulator(start=resets_itself), sequence_config("INT32", batching)
        )
        steps.initial = steps.initial._replace(tensors=(np.array([100], "<i4").tobytes(),))
        assert outputs_of(steps.run(step(1, 7, start=True))) == [[expected]]


def test_SB09_a_state_that_is_declared_as_an_output_too_is_returned(
    tmp_path,
) -> None:
    """Only where a request wants it; the state is kept in any case."""
    text = sequence_config("INT32", STATE % ("INT32", "1"))
    text += 'output [{ name: "STATE_OUT" data_type: TYPE_INT32 dims: [1] }]'
    steps = load(tmp_path, models.accumulator(), text)
    found = steps.run(step(1, 5, start=True), step(2, 6, start=True))
    assert outputs_of(found, "STATE_OUT") == outputs_of(found) == [[5], [6]]
    batch = steps.batch(step(1, 5))
    for entry in batch.entries:
        assert entry is not None
        entry.outputs = (RequestedOutput("OUTPUT"),)
    emitted = []
    steps.instance.execute(batch, emitted.append)
    assert list(emitted[0].outputs) == ["OUTPUT"]
    assert emitted[0].states["STATE_OUT"].tolist() == [[10]]


def test_SQ17_a_request_that_fails_keeps_its_state_and_its_neighbours_go_on(tmp_path) -> None:
    """Text that is no UTF-8 is its own request's error; the text of states goes out and comes in."""
    batching = STATE % ("STRING", "2")
    steps = load(
        tmp_path, models.passing("BYTES", [2]), sequence_config("STRING", batching, dims="2")
    )

    def given(of: int, *items: bytes, start: bool = False) -> Step:
        return Step(of, {"INPUT": texts(*items).reshape(1, 2)}, start)

    first = steps.run(given(1, b"a", "é".encode(), start=True), given(2, b"", b"z", start=True))
    assert outputs_of(first) == [[b"", b""], [b"", b""]]
    bad, good = steps.run(given(1, b"\xff", b"b"), given(2, b"y", b"x"))
    assert isinstance(bad, InvalidRequest)
    assert outputs_of([good]) == [[b"", b"z"]]
    assert steps.state(1).tolist() == [b"a", "é".encode()]
    assert outputs_of(steps.run(given(1, b"c", b"c"))) == [[b"a", "é".encode()]]


def test_a_state_that_is_not_text_is_named(tmp_path) -> None:
    """A file of initial data may hold any bytes, and an ONNX string cannot."""
    steps = load(
        tmp_path, models.passing("BYTES", [1]), sequence_config("STRING", STATE % ("STRING", "1"))
    )
    steps.initial = steps.initial._replace(tensors=(join_bytes([b"\xff"]),))
    (outcome,) = steps.run(Step(1, {"INPUT": texts(b"a").reshape(1, 1)}, True))
    assert isinstance(outcome, BackendError)
    assert "'STATE_IN'" in outcome.detail
    assert "UTF-8" in outcome.detail


def test_an_open_dim_of_a_state_follows_the_input(tmp_path) -> None:
    """The shape is the model's, step by step."""
    steps = load(
        tmp_path,
        models.passing("FP32", ["n"]),
        sequence_config("FP32", STATE % ("FP32", "-1"), dims="-1"),
    )

    def given(*values: float) -> Step:
        return Step(1, {"INPUT": np.array([values], "<f4")}, len(values) == 3)

    assert outputs_of(steps.run(given(1, 2, 3))) == [[0]]
    assert outputs_of(steps.run(given(4, 5))) == [[1, 2, 3]]
    assert outputs_of(steps.run(given(6))) == [[4, 5]]


@lru_cache(maxsize=32)
def loaded_once(datatype: Datatype) -> Steps:
    """Load `onnx_sequence_models.passing` once for many examples."""
    word = "STRING" if datatype is Datatype.BYTES else str(datatype)
    text = sequence_config(word, STATE % (word, "2, 3"), rows=8, dims="2, 3")
    with TemporaryDirectory() as directory:
        return load(Path(directory), models.passing(str(datatype), [2, 3]), text)


@pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_SB07_states_of_every_datatype_survive_bit_by_bit(datatype: Datatype, data) -> None:
    """Any interleaving: each step's output is the input of its own sequence's step before (B51)."""
    steps = loaded_once(datatype)
    steps.states.clear()
    last: dict[int, bytes] = {}
    for ids in data.draw(
        st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=5, unique=True), max_size=4)
    ):
        inputs = [data.draw(raw(datatype, 6)) for _ in ids]
        given_steps = [
            Step(
                one,
                {"INPUT": (datatype, np.frombuffer(item, datatype.numpy).reshape(1, 2, 3))},
                one not in last,
            )
            for one, item in zip(ids, inputs, strict=True)
        ]
        found = steps.run(*given_steps)
        for one, item, outcome in zip(ids, inputs, found, strict=True):
            assert outcome is not None
            assert not isinstance(outcome, InferError)
            assert outcome["OUTPUT"].tobytes() == last.get(one, bytes(6 * datatype.size))
            last[one] = item


@lru_cache(maxsize=1)
def speech() -> Steps:
    with TemporaryDirectory() as directory:
        return load(Path(directory), models.speech(), SPEECH)


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_batch_axis_in_the_middle_and_a_constant_scalar(data) -> None:
    """As Silero VAD has them: any interleaving, with padding rows, equals each stream run alone in order."""
    steps = speech()
    steps.states.clear()
    alone: dict[int, np.ndarray] = {}
    for ids in data.draw(
        st.lists(
            st.lists(st.integers(0, 9), min_size=1, max_size=8, unique_by=lambda i: i or object()),
            max_size=5,
        )
    ):
        if not any(ids):
            continue
        batch = []
        expected = []
        for one in ids:
            if one == 0:
                batch.append(None)
                continue
            x = np.array(
                data.draw(st.lists(st.integers(-8, 8), min_size=4, max_size=4)), np.float32
            )
            batch.append(Step(one, {"input": x[np.newaxis]}, one not in alone))
            before = alone.get(one, np.zeros((2, 4), np.float32))
            output, alone[one] = models.speech_expected(x, before)
            expected.append(output)
        found = [outcome for outcome in steps.run(*batch) if outcome is not None]
        for outcome, output in zip(found, expected, strict=True):
            assert not isinstance(outcome, InferError)
            np.testing.assert_allclose(outcome["output"][0], output, rtol=1e-6, atol=1e-9)
        for one in filter(None, ids):
            np.testing.assert_array_equal(steps.state(one), alone[one])


def test_a_moved_state_can_be_returned_with_its_rows_first(tmp_path) -> None:
    """On the wire the batch axis is always the first."""
    text = SPEECH + 'output [{ name: "stateN" data_type: TYPE_FP32 dims: [2, 4] }]'
    steps = load(tmp_path, models.speech(), text)
    rows = np.arange(12, dtype="<f4").reshape(3, 4)
    inputs: list[Arrays] = [{"input": row[np.newaxis]} for row in rows]
    found = steps.run(*(Step(i, one, True) for i, one in enumerate(inputs, 1)))
    for i, (row, outcome) in enumerate(zip(rows, found, strict=True), 1):
        assert outcome is not None
        assert not isinstance(outcome, InferError)
        _, after = models.speech_expected(row, np.zeros((2, 4), np.float32))
        assert outcome["stateN"].tolist() == [after.tolist()]
        np.testing.assert_array_equal(steps.state(i), after)


def test_the_same_batch_can_be_run_again(tmp_path) -> None:
    """A run leaves the batch's columns as they are: text stays bytes, and axes are not moved twice."""
    steps = load(tmp_path, models.speech(), SPEECH)
    batch = steps.batch(
        *(Step(i, {"input": np.full((1, 4), i, "<f4")}, True) for i in range(1, 4))
    )
    emitted = []
    for _ in range(2):
        steps.instance.execute(batch, emitted.append)
    first, again = emitted
    np.testing.assert_array_equal(first.outputs["output"], again.outputs["output"])
    np.testing.assert_array_equal(first.states["stateN"], again.states["stateN"])
