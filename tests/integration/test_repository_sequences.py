"""Sequence models in a repository: initial states from files, warm-up, and a good model like Silero VAD."""

import numpy as np
import onnx_models
import onnx_sequence_models
import pytest
from backend_kit import Listening
from headrace.repository.check import check
from headrace.repository.layout import scan
from headrace.repository.prepare import Backends, LoadSettings, prepare
from headrace.repository.repository import Repository
from headrace.repository.warmup import build_samples
from headrace.schemas.sequence import Flag
from headrace.schemas.signature import Signature
from headrace.schemas.tensor import join_bytes

STATE = "sequence_batching.state[STATE_IN]"


@pytest.fixture
def opened():
    """Load repositories and close them after the test."""
    made = []

    def load(path, **how):
        repository = Repository([path], **how)
        repository.load()
        made.append(repository)
        return repository

    yield load
    for repository in made:
        repository.close()


def accumulating(initial="", *, dims="[2]", datatype="TYPE_INT32", rest=""):
    return f"""max_batch_size: 4 sequence_batching {{
        state {{ input_name: "STATE_IN" output_name: "STATE_OUT" data_type: {datatype} dims: {dims} {initial} }} }}
        {rest}"""


def from_file(name, *, dims="[2]", datatype="TYPE_INT32"):
    return (
        f"""initial_state {{ name: "i" data_type: {datatype} dims: {dims} data_file: "{name}" }}"""
    )


def write(path, text, files=None, *, made=None):
    onnx_models.write_repository(
        path, {"m": made or onnx_sequence_models.accumulator(size=2)}, {"m": text}
    )
    for name, data in (files or {}).items():
        target = path / "m" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "initial",
    ["", 'initial_state { name: "i" data_type: TYPE_INT32 dims: [2] zero_data: true }'],
)
def test_SB08_a_state_is_zero_at_START(tmp_path, opened, initial):
    repository = opened(write(tmp_path, accumulating(initial)))
    assert repository.failures == {}
    assert repository.models["m"].versions[1].initial_state == ((bytes(8),), ((2,),))


def test_SB08_a_state_comes_from_a_file_under_initial_state(tmp_path, opened):
    """Raw little-endian; Triton's own tests add 100 so (SEMANTICS §5.4)."""
    data = np.array([100, 200], "<i4").tobytes()
    text = accumulating(from_file("deep/i.bin"))
    repository = opened(write(tmp_path, text, {"initial_state/deep/i.bin": data}))
    assert repository.failures == {}
    assert repository.models["m"].versions[1].initial_state == ((data,), ((2,),))


def test_SB08_an_open_size_is_1_where_no_initial_state_says_more(tmp_path, opened):
    made = onnx_sequence_models.accumulator(size="k")
    repository = opened(write(tmp_path / "a", accumulating(dims="[-1]"), made=made))
    assert repository.models["m"].versions[1].initial_state == ((bytes(4),), ((1,),))
    text = accumulating(from_file("i", dims="[3]"), dims="[-1]")
    repository = opened(write(tmp_path / "b", text, {"initial_state/i": bytes(12)}, made=made))
    assert repository.models["m"].versions[1].initial_state == ((bytes(12),), ((3,),))


def test_SB08_text_states_are_elements_behind_their_lengths(tmp_path, opened):
    made = onnx_sequence_models.passing("BYTES", [2])
    data = join_bytes([b"a", "é".encode()])
    text = accumulating(from_file("i", datatype="TYPE_STRING"), datatype="TYPE_STRING")
    repository = opened(write(tmp_path / "a", text, {"initial_state/i": data}, made=made))
    assert repository.failures == {}
    assert repository.models["m"].versions[1].initial_state == ((data,), ((2,),))
    plain = accumulating(datatype="TYPE_STRING")
    repository = opened(write(tmp_path / "b", plain, made=made))
    empty = join_bytes([b"", b""])
    assert repository.models["m"].versions[1].initial_state == ((empty,), ((2,),))


def test_a_model_without_states_has_none(tmp_path, opened):
    onnx_models.write_repository(tmp_path, {"m": onnx_models.mlp()}, {"m": "sequence_batching {}"})
    repository = opened(tmp_path)
    assert repository.models["m"].versions[1].initial_state == ((), ())
    assert repository.models["m"].config.dynamic_batching is None


@pytest.mark.parametrize(
    ("name", "datatype", "expected"),
    [
        ("none", "TYPE_INT32", "no such file in"),
        ("../config.pbtxt", "TYPE_INT32", "expected a path inside"),
        ("/etc/hostname", "TYPE_INT32", "expected a path inside"),
        ("link", "TYPE_INT32", "expected a path inside"),
        ("folder", "TYPE_INT32", "cannot be read"),
        ("short", "TYPE_INT32", "expected 8 bytes for INT32 [2], not 7"),
        ("long", "TYPE_INT32", "expected 8 bytes for INT32 [2], not 9"),
        ("one", "TYPE_STRING", "expected 2 elements for BYTES [2], not 1"),
        ("short", "TYPE_STRING", "expected BYTES [2], each element behind its length: incomplete string"),
    ],
)  # fmt: skip
def test_SB08_a_file_that_is_no_initial_state_fails_the_load(
    tmp_path, opened, name, datatype, expected
):
    """…and the check before start says the same."""
    files = {
        "initial_state/short": bytes(7),
        "initial_state/long": bytes(9),
        "initial_state/one": join_bytes([b"a"]),
        "initial_state/folder/x": b"",
    }
    made = onnx_sequence_models.passing(
        datatype.removeprefix("TYPE_").replace("STRING", "BYTES"), [2]
    )
    text = accumulating(from_file(name, datatype=datatype), datatype=datatype)
    write(tmp_path, text, files, made=made)
    (tmp_path / "m/initial_state/link").symlink_to(tmp_path / "m/config.pbtxt")
    (cause,) = opened(tmp_path).failures["m"].causes.values()
    assert cause.file == str(tmp_path / "m/config.pbtxt")
    assert (cause.field, cause.value) == (f"{STATE}.initial_state.data_file", name)
    assert expected in cause.expected
    (row,) = check([tmp_path])
    assert (row.ok, row.field, row.value) == (False, cause.field, cause.value)


def test_SB08_zeros_that_no_memory_holds_are_refused(tmp_path, opened):
    made = onnx_sequence_models.accumulator(size="k")
    text = accumulating(dims=f"[{2**61}]")
    (cause,) = opened(write(tmp_path, text, made=made)).failures["m"].causes.values()
    assert (cause.field, cause.value) == (f"{STATE}.dims", f"[{2**61}]")
    assert "fits in memory" in cause.expected


WARMUP = """model_warmup { name: "w" batch_size: 2
    inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: [1] input_data_file: "five" } } %s }"""


def warm(tmp_path, opened, rest, *, extra=""):
    """Load an accumulator of the identity backend; return what its instance executed."""
    text = f"""backend: "identity" max_batch_size: 4
        input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [1] }}
        output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [1] }}
        parameters {{ key: "accumulate" value {{ string_value: "true" }} }}
        instance_group {{ count: 1 kind: KIND_CPU }}
        sequence_batching {{ {rest} }} {WARMUP % extra}"""
    five, hundred = (np.array([n], "<i4").tobytes() for n in (5, 100))
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/config.pbtxt").write_text(text, encoding="utf-8")
    for name, data in (("warmup/five", five), ("initial_state/hundred", hundred)):
        (tmp_path / "m" / name).parent.mkdir()
        (tmp_path / "m" / name).write_bytes(data)
    backend = Listening()
    repository = opened(tmp_path, find=lambda _: backend)
    assert repository.failures == {}
    ((_, inputs),) = backend.heard
    return inputs


CONTROLS = """
    control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
    control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }
    control_input { name: "E" control { kind: CONTROL_SEQUENCE_END bool_false_true: [false, true] } }
    control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_%s } }"""


@pytest.mark.parametrize(("corrid", "one"), [("UINT64", 1), ("INT32", 1), ("STRING", b"1")])
def test_MR_41_a_sequence_model_is_warmed_up_with_whole_sequences(tmp_path, opened, corrid, one):
    """START, READY and END are true, the correlation id is 1, whatever its type."""
    inputs = warm(tmp_path, opened, CONTROLS % corrid)
    assert inputs["INPUT0"].tolist() == [[5], [5]]
    assert [inputs[name].tolist() for name in "SREC"] == [
        [[1.0], [1.0]],
        [[1], [1]],
        [[True], [True]],
        [[one], [one]],
    ]


def test_MR_41_a_sequence_model_is_warmed_up_from_its_initial_state(tmp_path, opened):
    state = """state { input_name: "in" output_name: "out" data_type: TYPE_INT32 dims: [1]
        initial_state { name: "i" data_type: TYPE_INT32 dims: [1] data_file: "hundred" } }"""
    inputs = warm(tmp_path, opened, state)
    assert inputs["in"].tolist() == [[100], [100]]


def test_MR_41_a_sample_may_list_controls_which_the_server_makes_all_the_same(tmp_path, opened):
    """Triton's samples of sequence models have to list them."""
    extra = 'inputs { key: "S" value { data_type: TYPE_FP32 dims: [1] zero_data: true } }'
    inputs = warm(tmp_path, opened, CONTROLS % "UINT64", extra=extra)
    assert inputs["S"].tolist() == [[1.0], [1.0]]


SPEECH = """
    max_batch_size: 8
    sequence_batching {
      oldest { max_queue_delay_microseconds: 500 }
      state { input_name: "state" output_name: "stateN" data_type: TYPE_FP32 dims: [2, 4] }
    }
    parameters { key: "batch_axis.state" value { string_value: "1" } }
    parameters { key: "batch_axis.stateN" value { string_value: "1" } }
    parameters { key: "constant.sr" value { string_value: "16000" } }
    model_warmup { name: "w" batch_size: 3
      inputs { key: "input" value { data_type: TYPE_FP32 dims: [4] random_data: true } } }
"""


def test_a_model_like_silero_vad_loads_and_runs_its_warm_up(tmp_path, opened):
    """Its state is [2,N,4] and its rate a scalar; a client sees neither, and the model answers."""
    repository = opened(write(tmp_path, SPEECH, made=onnx_sequence_models.speech()))
    assert repository.failures == {}
    loaded = repository.models["m"].versions[1]
    assert [spec.name for spec in loaded.signature.inputs] == ["input"]
    assert [spec.name for spec in loaded.signature.outputs] == ["output"]
    assert loaded.initial_state == ((bytes(32),), ((2, 4),))
    (row,) = check([tmp_path])
    assert (row.ok, row.backend, row.warnings) == (True, "onnxruntime", ())


@pytest.mark.parametrize(
    ("old", "new", "field", "expected"),
    [
        ("batch_axis.stateN", "batch_axis.stateM", "parameters[batch_axis.stateM]", "the model has no tensor of this"),
        ("constant.sr", "constant.rate", "parameters[constant.rate]", "the model has no input of this name"),
        ('"16000"', '"16 kHz"', "parameters[constant.sr]", "expected integers that INT64 can hold"),
        ('string_value: "1"', 'string_value: "0"', "max_batch_size", "the first dimension of 'state' is not open"),
        ("max_batch_size: 8", "", None, None),
    ],
)  # fmt: skip
def test_a_parameter_that_does_not_fit_the_model_is_refused_at_load(
    tmp_path, opened, old, new, field, expected
):
    """The last row fits: the batch size is found from the tensors whose batch axes are placed."""
    text = SPEECH.replace(old, new)
    repository = opened(write(tmp_path, text, made=onnx_sequence_models.speech()))
    if field is None:
        assert repository.models["m"].config.max_batch_size == 4
        return
    (cause,) = repository.failures["m"].causes.values()
    assert cause.field == field
    assert expected in cause.expected


def test_MR_41_warm_up_batches_give_each_row_the_first_state(tmp_path):
    """A live sequence at its START, of the version that is warmed up."""
    write(tmp_path, SPEECH, made=onnx_sequence_models.speech())
    settings = LoadSettings()
    prepared = prepare(scan([tmp_path]).sources["m"], settings, Backends(settings))
    (sample,) = build_samples(prepared, Signature(prepared.config, 7))
    assert len(sample.batch.states) == len(sample.batch.entries) == 3
    for state, entry in zip(sample.batch.states, sample.batch.entries, strict=True):
        assert (state.flag, state.version, state.steps) == (Flag.LIVE, 7, 0)
        assert (state.tensors, state.shapes) == ((bytes(32),), ((2, 4),))
        assert (entry.sequence_id, entry.sequence_start, entry.sequence_end) == (1, True, True)
