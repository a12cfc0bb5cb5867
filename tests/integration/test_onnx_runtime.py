"""The onnxruntime backend on real model files: loading, execution and what goes wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest
from backend_kit import CPU, batch_of, completed, run, run_one, texts
from headrace.backends.backend import Backend, Device, find_backend
from headrace.backends.onnx_tensors import DATATYPES
from headrace.backends.onnxruntime import OnnxRuntimeBackend
from headrace.backends.ort import check_installation
from headrace.schemas.errors import BackendError, ConfigError, InvalidRequest, OutOfMemory, Reason
from headrace.schemas.model_config import InstanceKind, ModelConfig
from headrace.schemas.split import split_output
from headrace.schemas.tensor import Datatype


@pytest.fixture
def backend() -> Backend:
    return find_backend("onnxruntime")


@pytest.fixture
def load(backend, tmp_path):
    """Write a model, complete and load it; returns the configuration and one instance."""
    models = []

    def loaded(made: onnx.ModelProto, text: str = ""):
        path = tmp_path / "1" / "model.onnx"
        path.parent.mkdir(exist_ok=True)
        onnx.save_model(made, path)
        config = completed(backend, path, text)
        model = backend.load(config, path)
        models.append(model)
        return config, model.instance("model_0_0", CPU)

    yield loaded
    for model in models:
        model.close()


def tensors(config: ModelConfig) -> list[tuple[str, Datatype, tuple[int, ...]]]:
    return [(t.name, t.datatype, t.dims) for t in (*config.inputs, *config.outputs)]


def test_MR08_AC02_a_single_model_file_serves_without_a_configuration(load) -> None:
    """The MLP completes to four rows per batch and computes what numpy does."""
    config, instance = load(onnx_models.mlp())
    assert config.max_batch_size == 4
    assert config.dynamic_batching is not None
    assert tensors(config) == [("x", Datatype.FP32, (128,)), ("y", Datatype.FP32, (10,))]
    assert [(g.kind, g.count) for g in config.instance_groups] == [(InstanceKind.KIND_CPU, 2)]
    x = np.random.default_rng(1).standard_normal((4, 128)).astype(np.float32)
    outputs = run_one(instance, batch_of(config, *({"x": row[None]} for row in x)))
    np.testing.assert_allclose(outputs["y"], onnx_models.mlp_expected(x), rtol=1e-4, atol=1e-4)


def test_the_default_batch_size_is_set_from_outside(backend, tmp_path) -> None:
    backend.default_max_batch_size = 32
    onnx.save_model(onnx_models.mlp(), tmp_path / "model.onnx")
    assert completed(backend, tmp_path / "model.onnx").max_batch_size == 32


def test_simple_swaps_its_outputs_in_versions_2_and_3(backend, tmp_path) -> None:
    """SEMANTICS §5.4, on a repository's layout."""
    root = onnx_models.write_repository(
        tmp_path, {"simple": {v: onnx_models.add_sub(v) for v in (1, 2, 3)}}
    )
    a = np.arange(16, dtype="<i4")[None]
    b = np.full((1, 16), 2, "<i4")
    for version in (1, 2, 3):
        path = root / "simple" / str(version) / "model.onnx"
        config = completed(backend, path, "max_batch_size: 8")
        instance = backend.load(config, path).instance("simple_0_0", CPU)
        outputs = run_one(instance, batch_of(config, {"INPUT0": a, "INPUT1": b}))
        plus, minus = ("OUTPUT0", "OUTPUT1") if version == 1 else ("OUTPUT1", "OUTPUT0")
        np.testing.assert_array_equal(outputs[plus], a + b)
        np.testing.assert_array_equal(outputs[minus], a - b)


@pytest.mark.parametrize("path", ["1/model.onnx", "1"])
def test_MR10_a_model_may_be_a_directory_with_external_data(backend, tmp_path, path) -> None:
    """Its weights lie beside it; the path may name the directory or the version's."""
    onnx_models.write_external(tmp_path / "1", onnx_models.mlp())
    assert (tmp_path / "1" / "model.onnx" / "weights.bin").stat().st_size > 1_000_000
    config = completed(backend, tmp_path / path)
    instance = backend.load(config, tmp_path / path).instance("mlp_0_0", CPU)
    x = np.ones((1, 128), "<f4")
    outputs = run_one(instance, batch_of(config, {"x": x}))
    np.testing.assert_allclose(outputs["y"], onnx_models.mlp_expected(x), rtol=1e-4, atol=1e-4)


def test_B48_a_detector_that_finds_nothing_returns_zero_rows(load) -> None:
    """Success, shape [0,6], empty data; also for zero boxes in."""
    config, instance = load(
        onnx_models.detector(),
        'input [{ name: "boxes" data_type: TYPE_FP32 dims: [-1, 6] }]'
        'output [{ name: "found" data_type: TYPE_FP32 dims: [-1, 6] }]',
    )
    for boxes in (np.zeros((5, 6), "<f4"), np.empty((0, 6), "<f4")):
        batch = batch_of(config, {"boxes": boxes})
        outputs = run_one(instance, batch)
        assert split_output(batch, batch.signature.outputs[0], outputs["found"]) == [((0, 6), b"")]
    boxes = np.eye(6, dtype="<f4")
    found = run_one(instance, batch_of(config, {"boxes": boxes}))["found"]
    np.testing.assert_array_equal(found, boxes[5:])


def test_AC02_a_label_per_row_is_reshaped(load) -> None:
    """[N] is dims [1], reshape []: on the wire each row has one element."""
    config, instance = load(onnx_models.labels())
    assert config.outputs[0].reshape == ()
    batch = batch_of(
        config,
        {"x": np.eye(4, dtype="<f4")[[2]]},
        {"x": np.eye(4, dtype="<f4")[[3, 1]]},
    )
    outputs = run_one(instance, batch)
    assert split_output(batch, batch.signature.outputs[0], outputs["label"]) == [
        ((1, 1), np.array([2], "<i8").tobytes()),
        ((2, 1), np.array([3, 1], "<i8").tobytes()),
    ]


def test_AC02_scalars_are_dims_of_one(load) -> None:
    """The model takes and gives rank 0; the wire has [1]."""
    config, instance = load(onnx_models.scalars())
    assert [t.dims for t in (*config.inputs, *config.outputs)] == [(1,), (1,)]
    outputs = run_one(instance, batch_of(config, {"value": np.array([21], "<f4")}))
    assert outputs["double"].tolist() == [42.0]


def test_AC02_a_fixed_batch_axis_is_a_dim(load, backend, tmp_path) -> None:
    config, instance = load(onnx_models.fixed_batch())
    assert config.max_batch_size == 0
    assert config.inputs[0].dims == (1, 4)
    x = np.arange(4, dtype="<f4")[None]
    np.testing.assert_array_equal(run_one(instance, batch_of(config, {"x": x}))["y"], 2 * x)
    with pytest.raises(ConfigError, match="does not support batching"):
        completed(backend, tmp_path / "1" / "model.onnx", "max_batch_size: 2")


def test_MR24_an_input_with_a_value_of_its_own_may_be_left_out(load) -> None:
    config, instance = load(
        onnx_models.optional_input(),
        """
        input [
          { name: "x" data_type: TYPE_FP32 dims: [4] },
          { name: "bias" data_type: TYPE_FP32 dims: [4] optional: true }
        ]
        """,
    )
    x = np.ones(4, "<f4")
    without = run_one(instance, batch_of(config, {"x": x}))
    assert without["y"].tolist() == [11.0] * 4
    given = run_one(instance, batch_of(config, {"x": x, "bias": x}))
    assert given["y"].tolist() == [2.0] * 4


def test_MR25_a_ragged_batch_arrives_flat_with_its_helper(load) -> None:
    """§1.4: requests of 3, 4 and 5 elements share one execution."""
    config, instance = load(
        onnx_models.ragged_sum(),
        """
        max_batch_size: 8
        input [{ name: "flat" data_type: TYPE_FP32 dims: [-1] allow_ragged_batch: true }]
        batch_input [{ kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends"
                       data_type: TYPE_INT32 source_input: "flat" }]
        output [{ name: "total" data_type: TYPE_FP32 dims: [1] reshape { shape: [] } }]
        """,
    )
    batch = batch_of(config, *({"flat": np.ones((1, n), "<f4")} for n in (3, 4, 5)))
    assert run_one(instance, batch)["total"].tolist() == [3.0, 4.0, 5.0]


STRINGS = """
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_STRING dims: [-1] }]
output [{ name: "OUTPUT0" data_type: TYPE_STRING dims: [-1] }]
"""


def test_BYTES_that_are_not_UTF8_get_an_error_of_their_own(load) -> None:
    """ONNX strings are text: the culprit is told so, its neighbours are served."""
    config, instance = load(onnx_models.identity("BYTES"), STRINGS)
    rows = [texts(*row)[None] for row in ((b"a", b"b"), (b"c", b"\x00\xff"), (b"", b"\xc3\xa9"))]
    batch = batch_of(config, *({"INPUT0": row} for row in rows))
    (responses,) = run(instance, batch)
    assert list(responses.errors) == [1]
    assert isinstance(responses.errors[1], InvalidRequest)
    assert "'INPUT0'" in responses.errors[1].detail
    split = split_output(batch, batch.signature.outputs[0], responses.outputs["OUTPUT0"])
    for index in (0, 2):
        assert split[index][1] == bytes(batch.entries[index].data[0])
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        run(instance, batch_of(config, {"INPUT0": rows[1]}))


def test_B47_a_run_that_fails_is_a_backend_error_with_the_runtimes_words(load) -> None:
    """In one line, with the model's name and the cause chained."""
    config, instance = load(onnx_models.picky(), "max_batch_size: 8")
    batch = batch_of(config, *({"index": np.array([[v]], "<i8")} for v in (0, 99)))
    with pytest.raises(BackendError, match=r"model 'model' failed: .*indices element") as caught:
        run(instance, batch)
    assert "\n" not in caught.value.detail
    assert caught.value.__cause__ is not None
    assert caught.value.reason is Reason.BACKEND_FAILED
    good = batch_of(config, {"index": np.array([[2]], "<i8")})
    assert run_one(instance, good)["y"].tolist() == [[12.0]]


def test_B81_an_allocation_that_fails_is_out_of_memory_and_passes(load) -> None:
    """R4: typed as the runtime's fault and retriable; the next request is served."""
    config, instance = load(onnx_models.hungry())
    with pytest.raises(OutOfMemory, match="ran out of memory") as caught:
        run(instance, batch_of(config, {"shape": np.array([2**46], "<i8")}))
    assert caught.value.retriable
    assert run_one(instance, batch_of(config, {"shape": np.array([3], "<i8")}))["y"].shape == (3,)


async def longest_lag_s(action: Callable[[], object]) -> tuple[float, float]:
    """Run an action in a thread; return how long it took and the loop's longest lag meanwhile, s."""
    loop = asyncio.get_running_loop()
    started = last = loop.time()
    lag = 0.0
    running = asyncio.create_task(asyncio.to_thread(action))
    while not running.done():
        await asyncio.sleep(0.01)
        now = loop.time()
        lag = max(lag, now - last - 0.01)
        last = now
    await running
    return last - started, lag


async def test_B2_a_long_run_leaves_the_event_loop_alone(load) -> None:
    """The runtime frees the interpreter's lock: the loop ticks while a long run goes on."""
    one_thread = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
    config, instance = load(onnx_models.slow(1024, 80), one_thread)
    batch = batch_of(config, {"x": np.ones((1024, 1024), "<f4")})
    took, lag = await longest_lag_s(lambda: run_one(instance, batch))
    assert took > 0.3, "the run was too short to show anything"
    assert lag < min(1.0, took / 2)


async def test_B2_a_runner_that_keeps_the_lock_would_be_seen() -> None:
    """The same measure over a call that never frees the interpreter's lock."""
    took, lag = await longest_lag_s(lambda: sum(range(40_000_000)))
    assert lag > took / 2


def test_cpu_instances_share_their_weights(backend, tmp_path) -> None:
    """The file may vanish once loaded: further instances need no second read."""
    path = tmp_path / "model.onnx"
    onnx.save_model(onnx_models.mlp(), path)
    config = completed(backend, path)
    model = backend.load(config, path)
    path.unlink()
    instances = [model.instance(f"mlp_0_{i}", CPU) for i in range(3)]
    x = np.ones((1, 128), "<f4")
    answers = [run_one(instance, batch_of(config, {"x": x}))["y"] for instance in instances]
    assert {instance.device for instance in instances} == {"CPUExecutionProvider"}
    np.testing.assert_array_equal(answers[0], answers[2])


def test_sessions_of_their_own_where_the_parameter_says_so(backend, tmp_path) -> None:
    """The first instance gets the session of the load, the next one reads the file again."""
    path = tmp_path / "model.onnx"
    onnx.save_model(onnx_models.mlp(), path)
    text = 'parameters { key: "share_session_between_instances" value { string_value: "false" } }'
    config = completed(backend, path, text)
    model = backend.load(config, path)
    path.unlink()
    model.instance("mlp_0_0", CPU)
    with pytest.raises(ConfigError, match="cannot load"):
        model.instance("mlp_0_1", CPU)


SHRINKAGE = """
parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }
"""
OPENVINO = """
optimization { execution_accelerators { cpu_execution_accelerator [{ name: "openvino" }] } }
"""


@pytest.mark.parametrize(
    "text",
    [
        'parameters { key: "execution_mode" value { string_value: "1" } }',
        'parameters { key: "intra_op_thread_count" value { string_value: "2" } }',
        SHRINKAGE,
        'parameters { key: "enable_mem_arena" value { string_value: "false" } }',
        "optimization { graph { level: -1 } }",
        "optimization { graph { level: 2 } }",
    ],
)
def test_MR42_MR43_every_setting_runs(load, text) -> None:
    config, instance = load(onnx_models.mlp(), text)
    x = np.ones((2, 128), "<f4")
    outputs = run_one(instance, batch_of(config, {"x": x}))
    np.testing.assert_allclose(outputs["y"], onnx_models.mlp_expected(x), rtol=1e-4, atol=1e-4)


def write_garbage(path: Path) -> None:
    path.write_bytes(b"not a model")


def write_nothing(path: Path) -> None:
    assert not path.exists()


def write_truncated(path: Path) -> None:
    path.write_bytes(onnx_models.mlp().SerializeToString()[:-1000])


@pytest.mark.parametrize("write", [write_garbage, write_nothing, write_truncated])
def test_a_file_that_cannot_be_loaded_is_named(backend, tmp_path, write) -> None:
    path = tmp_path / "model.onnx"
    write(path)
    with pytest.raises(ConfigError) as caught:
        completed(backend, path)
    assert caught.value.file == str(path)
    assert "\n" not in str(caught.value)


def test_missing_external_data_is_named(backend, tmp_path) -> None:
    target = onnx_models.write_external(tmp_path, onnx_models.mlp())
    (target / "weights.bin").unlink()
    with pytest.raises(ConfigError, match=r"weights\.bin"):
        completed(backend, target)


def test_a_tensor_that_V2_cannot_carry_is_refused_unless_left_out(load) -> None:
    with pytest.raises(ConfigError, match=r"output\.all.*seq\(tensor\(float\)\)"):
        load(onnx_models.probabilities())
    config, instance = load(
        onnx_models.probabilities(), 'output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]'
    )
    x = np.ones((1, 4), "<f4")
    assert list(run_one(instance, batch_of(config, {"x": x}))) == ["y"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model_transaction_policy { decoupled: true }", ["decoupled"]),
        ('parameters { key: "execution_mode" value { string_value: "7" } }', ["execution_mode"]),
        (
            OPENVINO,
            ["OpenVINOExecutionProvider", "CPUExecutionProvider"],
        ),
        ("instance_group [{ kind: KIND_GPU gpus: [0] }]", ["CUDAExecutionProvider"]),
    ],
)
def test_a_setting_that_is_not_to_be_had_fails_the_load(backend, load, text, words) -> None:
    if "KIND_GPU" in text and backend.gpus():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError) as caught:
        load(onnx_models.mlp(), text)
    for word in words:
        assert word in str(caught.value)


def test_KIND_GPU_for_one_instance_is_refused_without_a_gpu(backend, tmp_path) -> None:
    if backend.gpus():
        pytest.skip("there is a GPU here")
    path = tmp_path / "model.onnx"
    onnx.save_model(onnx_models.mlp(), path)
    model = backend.load(completed(backend, path), path)
    with pytest.raises(ConfigError, match="headrace\\[gpu\\]"):
        model.instance("mlp_1_0", Device(InstanceKind.KIND_GPU, 0))


def test_the_listed_datatypes_are_all_that_V2_has() -> None:
    assert sorted(DATATYPES.values()) == sorted(Datatype)
    assert set(onnx_models.ELEMENT_TYPES) == set(Datatype)


def test_two_onnxruntimes_at_once_are_refused(monkeypatch, tmp_path) -> None:
    """Both own the import; the environment itself is asked, here with a second one's metadata."""
    check_installation()
    found = tmp_path / "onnxruntime_gpu-1.30.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.30.0\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="onnxruntime and onnxruntime-gpu are installed"):
        OnnxRuntimeBackend().complete(None, tmp_path)


def test_a_missing_onnxruntime_names_the_extra(tmp_path) -> None:
    """In an interpreter whose onnxruntime cannot be imported."""
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text(
        'raise ModuleNotFoundError("No module named \'onnxruntime\'", name="onnxruntime")\n',
        encoding="utf-8",
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from headrace.backends.backend import find_backend\n"
        "from headrace.schemas.errors import ConfigError\n"
        "try:\n    find_backend('onnxruntime')\n"
        "except ConfigError as exc:\n    print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert 'pip install "headrace[onnx]"' in done.stdout


def test_exit_if_ends_the_process_once(tmp_path) -> None:
    """With a marker file, the process that comes after it lives."""
    marker = tmp_path / "killed"
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import numpy as np
from pathlib import Path
from backend_kit import CPU, batch_of, completed, run_one
from headrace.backends.identity import IdentityBackend
text = '''
max_batch_size: 4
input [{{ name: "INPUT0" data_type: TYPE_INT32 dims: [1] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [1] }}]
parameters {{ key: "exit_if" value {{ string_value: "9" }} }}
parameters {{ key: "exit_marker_file" value {{ string_value: "{marker}" }} }}
'''
backend = IdentityBackend()
config = completed(backend, Path("."), text)
instance = backend.load(config, Path(".")).instance("i", CPU)
for value in (1, 9):
    print(run_one(instance, batch_of(config, {{"INPUT0": np.array([[value]], "<i4")}})), flush=True)
"""
    results = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for _ in range(2)
    ]
    assert [result.returncode for result in results] == [70, 0], results
    assert [result.stdout.count("OUTPUT0") for result in results] == [1, 2]


def test_execute_adds_little_to_the_runtimes_own_time(load) -> None:
    """Of a batch of 64 rows through the MLP, at most a third is ours: joining, names, the response."""
    config, instance = load(onnx_models.mlp(), "max_batch_size: 64")
    x = np.random.default_rng(0).standard_normal((64, 128)).astype("<f4")
    batch = batch_of(config, *({"x": row[None]} for row in x))
    feeds = batch.inputs()
    session, options = instance._session, instance._options

    def best(action) -> float:
        times = []
        for _ in range(200):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        return min(times)

    ours = best(lambda: instance.execute(batch, lambda _: None))
    bare = best(lambda: session.run(["y"], feeds, options))
    assert ours < 1.5 * bare + 100e-6, (ours, bare)
