"""What every backend promises, written once and run for each: the port of `headrace.backends.backend`."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_models
import onnx_sequence_models
import pytest
from backend_kit import batch_of, completed, parsed, run, run_one, texts
from headrace.backends.backend import Backend, Device, Instance, Model, backend_names, find_backend
from headrace.schemas.errors import BackendError, ConfigError
from headrace.schemas.model_config import InstanceKind, ModelConfig
from headrace.schemas.split import split_output
from headrace.schemas.tensor import Datatype
from sequence_steps import Step, Steps, outputs_of

TWO_PAIRS = """
max_batch_size: 64
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1 ] }
]
"""

SUMS = """
max_batch_size: 8
input [{ name: "INPUT" data_type: TYPE_INT32 dims: [ 2 ] }]
output [{ name: "OUTPUT" data_type: TYPE_INT32 dims: [ 2 ] }]
sequence_batching {
  state [{ input_name: "STATE_IN" output_name: "STATE_OUT" data_type: TYPE_INT32 dims: [ 2 ] }]
}
"""


class BackendContract:
    """The promises. A subclass says how an echo model of that backend comes to be."""

    name: str
    device_kind = InstanceKind.KIND_CPU

    def write(self, directory: Path, model: onnx.ModelProto) -> Path:
        """Write the echo model's file, if the backend has one, and return its path."""
        raise NotImplementedError

    @pytest.fixture
    def backend(self) -> Backend:
        return find_backend(self.name)

    def echo(
        self, backend: Backend, directory: Path, text: str = TWO_PAIRS, datatype: str = "FP32"
    ) -> tuple[ModelConfig, Model]:
        """Load an echo model of two pairs."""
        path = self.write(directory, onnx_models.identity(datatype, [None], pairs=2))
        config = completed(backend, path, text)
        return config, backend.load(config, path)

    def device(self) -> Device:
        return Device(self.device_kind)

    @pytest.fixture
    def loaded(self, backend, tmp_path):
        config, model = self.echo(backend, tmp_path)
        instance = model.instance("model_0_0", self.device())
        yield config, instance
        instance.close()
        model.close()

    def test_it_is_found_under_its_name(self, backend) -> None:
        assert backend.name == self.name
        assert self.name in backend_names()

    def test_an_instance_has_the_name_it_was_given_and_says_where_it_runs(self, loaded) -> None:
        _, instance = loaded
        assert instance.name == "model_0_0"
        assert instance.concurrency == 1
        assert "CPU" in instance.device or self.device_kind is InstanceKind.KIND_GPU

    @pytest.mark.parametrize("rows", [1, 2, 7, 64])
    def test_each_row_comes_back_in_order(self, loaded, rows) -> None:
        """MR-22: outputs have the rows of the batch, in the order of its requests."""
        config, instance = loaded
        requests = [
            {
                "INPUT0": np.full((1, 3), i, dtype="<f4"),
                "INPUT1": np.full((1, 3), -i, dtype="<f4"),
            }
            for i in range(rows)
        ]
        outputs = run_one(instance, batch_of(config, *requests))
        expected = np.repeat(np.arange(rows, dtype="<f4"), 3).reshape(rows, 3)
        np.testing.assert_array_equal(outputs["OUTPUT0"], expected)
        np.testing.assert_array_equal(outputs["OUTPUT1"], -expected)

    def test_requests_that_are_batches_themselves_are_joined(self, loaded) -> None:
        """DB-23: a request's own rows stay together."""
        config, instance = loaded
        first = np.arange(6, dtype="<f4").reshape(2, 3)
        second = np.arange(6, 15, dtype="<f4").reshape(3, 3)
        batch = batch_of(
            config,
            {"INPUT0": first, "INPUT1": -first},
            {"INPUT0": second, "INPUT1": -second},
        )
        outputs = run_one(instance, batch)
        parts = split_output(batch, batch.signature.outputs[0], outputs["OUTPUT0"])
        assert parts == [((2, 3), first.tobytes()), ((3, 3), second.tobytes())]

    def test_only_wanted_outputs_are_given(self, loaded) -> None:
        """PB-40: the outputs that any request of the batch asks for, and no others."""
        config, instance = loaded
        x = {"INPUT0": np.ones((1, 2), "<f4"), "INPUT1": np.zeros((1, 2), "<f4")}
        one = batch_of(config, x, x, outputs=[["OUTPUT1"], ["OUTPUT1"]])
        assert list(run_one(instance, one)) == ["OUTPUT1"]
        both = batch_of(config, x, x, outputs=[["OUTPUT1"], ["OUTPUT0"]])
        assert set(run_one(instance, both)) == {"OUTPUT0", "OUTPUT1"}
        all_of_them = batch_of(config, x, x, outputs=[["OUTPUT1"], []])
        assert set(run_one(instance, all_of_them)) == {"OUTPUT0", "OUTPUT1"}

    def test_DB34_zero_size_inputs_run_like_others(self, loaded) -> None:
        config, instance = loaded
        empty = {"INPUT0": np.empty((1, 0), "<f4"), "INPUT1": np.empty((1, 0), "<f4")}
        outputs = run_one(instance, batch_of(config, empty, empty))
        assert outputs["OUTPUT0"].shape == (2, 0)

    @pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
    def test_MR20_every_datatype_comes_back_bit_by_bit(self, backend, tmp_path, datatype) -> None:
        """B51: bits survive, subnormals and NaN payloads included."""
        word = f"TYPE_{datatype}"
        config, model = self.echo(
            backend, tmp_path, TWO_PAIRS.replace("TYPE_FP32", word), str(datatype)
        )
        rng = random.Random(7)
        raw = bytearray(rng.randbytes(2 * 5 * datatype.size))
        if datatype is Datatype.BOOL:
            raw = bytearray(byte & 1 for byte in raw)
        array = np.frombuffer(raw, dtype=datatype.numpy).reshape(2, 5)
        batch = batch_of(
            config, {"INPUT0": (datatype, array), "INPUT1": (datatype, array[:, ::-1])}
        )
        instance = model.instance("model_0_0", self.device())
        outputs = run_one(instance, batch)
        for spec, expected in zip(batch.signature.outputs, (array, array[:, ::-1]), strict=True):
            ((_, data),) = split_output(batch, spec, outputs[spec.name])
            assert data == expected.tobytes()
        instance.close()
        model.close()

    def test_B55_BYTES_come_back_byte_by_byte(self, backend, tmp_path) -> None:
        """Empty, one byte, text beyond ASCII, embedded zeros, a megabyte."""
        config, model = self.echo(
            backend, tmp_path, TWO_PAIRS.replace("TYPE_FP32", "TYPE_STRING"), "BYTES"
        )
        items = (b"", b"a", "é".encode(), b"a\x00b\x00", b"x" * 1_000_000)
        array = texts(*items).reshape(1, 5)
        batch = batch_of(config, {"INPUT0": array, "INPUT1": array})
        instance = model.instance("model_0_0", self.device())
        outputs = run_one(instance, batch)
        ((shape, data),) = split_output(batch, batch.signature.outputs[0], outputs["OUTPUT0"])
        assert shape == (1, 5)
        assert data == bytes(batch.entries[0].data[0])
        instance.close()
        model.close()

    def test_outputs_belong_to_the_caller(self, loaded) -> None:
        """A later run never changes what an earlier one gave."""
        config, instance = loaded
        kept = []
        for i in range(20):
            x = np.full((4, 50), i, dtype="<f4")
            kept.append(run_one(instance, batch_of(config, {"INPUT0": x, "INPUT1": x}))["OUTPUT0"])
        for i, array in enumerate(kept):
            assert (array == i).all()

    def test_unaligned_input_is_read_right(self, loaded) -> None:
        """A tensor's bytes begin anywhere in a record."""
        config, instance = loaded
        x = np.arange(8, dtype="<f4").reshape(1, 8)
        batch = batch_of(config, {"INPUT0": x, "INPUT1": x})
        shifted = memoryview(b"?" + x.tobytes())[1:]
        batch.entries[0].data = (shifted, shifted)
        np.testing.assert_array_equal(run_one(instance, batch)["OUTPUT1"], x)

    def test_MR31_instances_run_at_the_same_time_and_never_mix_their_values(
        self, backend, tmp_path
    ) -> None:
        """B86: two instances, 1,000 executions, each with its own values."""
        config, model = self.echo(backend, tmp_path)
        instances = [model.instance(f"model_0_{i}", self.device()) for i in range(2)]
        assert [instance.name for instance in instances] == ["model_0_0", "model_0_1"]
        start = threading.Barrier(2)

        def repeat(instance: Instance, sign: int) -> int:
            start.wait(10)
            for i in range(500):
                x = np.full((1 + i % 8, 16), sign * i, dtype="<f4")
                outputs = run_one(instance, batch_of(config, {"INPUT0": x, "INPUT1": -x}))
                assert (outputs["OUTPUT0"] == x).all()
                assert (outputs["OUTPUT1"] == -x).all()
            return 500

        with ThreadPoolExecutor(2) as pool:
            runs = list(pool.map(repeat, instances, (1, -1)))
        assert sum(runs) == 1000
        for instance in instances:
            instance.close()
        model.close()

    def test_a_closed_instance_is_not_healthy_and_refuses(self, backend, tmp_path) -> None:
        """Closing twice is the same as once; a sibling goes on."""
        config, model = self.echo(backend, tmp_path)
        first = model.instance("model_0_0", self.device())
        second = model.instance("model_0_1", self.device())
        x = {"INPUT0": np.ones((1, 1), "<f4"), "INPUT1": np.ones((1, 1), "<f4")}
        assert first.healthy()
        first.close()
        first.close()
        assert not first.healthy()
        with pytest.raises(BackendError, match="'model_0_0' is closed"):
            run(first, batch_of(config, x))
        assert second.healthy()
        assert run_one(second, batch_of(config, x))["OUTPUT0"] == 1
        second.close()
        model.close()
        model.close()

    def test_a_failure_is_ours_and_leaves_the_instance_usable(self, backend, tmp_path) -> None:
        """B47: the error is a BackendError with the runtime's words; the next batch is served."""
        config, model, bad, good = self.failing(backend, tmp_path)
        instance = model.instance("model_0_0", self.device())
        emitted = []
        with pytest.raises(BackendError) as caught:
            instance.execute(batch_of(config, bad), emitted.append)
        assert emitted == []
        assert "\n" not in caught.value.detail
        assert len(caught.value.detail) > 10
        assert instance.healthy()
        assert run_one(instance, batch_of(config, good))
        instance.close()
        model.close()

    def failing(self, backend: Backend, directory: Path):
        """Return config, model, a request that fails and one that does not."""
        raise NotImplementedError

    def sums(
        self, backend: Backend, directory: Path, text: str = SUMS
    ) -> tuple[ModelConfig, Model]:
        """Load a model that adds INPUT to its declared state and answers with it."""
        raise NotImplementedError

    def test_SB07_a_sequence_model_gives_the_state_that_it_is_fed_next(
        self, backend, tmp_path
    ) -> None:
        """SQ-13, SQ-18: steps in any rows, beside any others and padding, equal each sequence alone."""
        config, model = self.sums(backend, tmp_path)
        assert model.repeatable
        steps = Steps(config, model.instance("model_0_0", self.device()))
        rng = random.Random(11)
        alone: dict[int, int] = {}
        for _ in range(60):
            batch: list[Step | None] = []
            for one in rng.sample(range(6), rng.randint(1, 6)):
                value, start = rng.randint(-9, 9), one not in alone or rng.random() < 0.1
                alone[one] = value if start else alone[one] + value
                given = np.array([[value, -value]], "<i4")
                batch.append(Step(one, {"INPUT": given}, start))
            batch.insert(rng.randint(0, len(batch)), None)
            expected = [None if s is None else [alone[s.id], -alone[s.id]] for s in batch]
            assert outputs_of(steps.run(*batch)) == expected

    def test_SB09_a_state_that_is_an_output_too_is_returned(self, backend, tmp_path) -> None:
        """Under its own name, with what the sequence keeps."""
        text = SUMS + 'output [{ name: "STATE_OUT" data_type: TYPE_INT32 dims: [ 2 ] }]'
        config, model = self.sums(backend, tmp_path, text)
        steps = Steps(config, model.instance("model_0_0", self.device()))
        given = {"INPUT": np.array([[3, 4]], "<i4")}
        assert outputs_of(steps.run(Step(1, given, True)), "STATE_OUT") == [[3, 4]]
        assert outputs_of(steps.run(Step(1, given)), "STATE_OUT") == [[6, 8]]
        assert steps.state(1).tolist() == [6, 8]

    def test_a_complete_configuration_is_left_alone(self, backend, tmp_path) -> None:
        """AC-02: nothing is filled where inputs and outputs are listed."""
        path = self.write(tmp_path, onnx_models.identity("FP32", [None], pairs=2))
        config = parsed(TWO_PAIRS)
        assert backend.complete(config, path) == config

    def test_the_names_of_listed_tensors_must_fit(self, backend, tmp_path) -> None:
        """A configuration that the model contradicts is refused at load, with the tensor's name."""
        path = self.write(tmp_path, onnx_models.identity("FP32", [None], pairs=2))
        text = TWO_PAIRS.replace(
            '"OUTPUT1" data_type: TYPE_FP32', '"OUTPUT1" data_type: TYPE_INT8'
        )
        with pytest.raises(ConfigError, match=r"OUTPUT1.*INT8") as caught:
            backend.load(completed(backend, path, text), path)
        assert "FP32" in str(caught.value)


class TestIdentity(BackendContract):
    name = "identity"

    def write(self, directory, model):
        return directory

    def failing(self, backend, directory):
        text = TWO_PAIRS + 'parameters { key: "fail_if" value { string_value: "13" } }'
        config, model = self.echo(backend, directory, text)
        bad, good = (
            {"INPUT0": np.full((1, 1), v, "<f4"), "INPUT1": np.zeros((1, 1), "<f4")}
            for v in (13, 12)
        )
        return config, model, bad, good

    def sums(self, backend, directory, text=SUMS):
        flag = 'parameters { key: "accumulate" value { string_value: "true" } }'
        config = completed(backend, directory, text + flag)
        return config, backend.load(config, directory)


class TestOnnxRuntime(BackendContract):
    name = "onnxruntime"

    def write(self, directory, model):
        path = directory / "model.onnx"
        onnx.save_model(model, path)
        return path

    def failing(self, backend, directory):
        path = self.write(directory, onnx_models.picky())
        config = completed(backend, path)
        bad, good = ({"index": np.full((1, 1), v, "<i8")} for v in (99, 2))
        return config, backend.load(config, path), bad, good

    def sums(self, backend, directory, text=SUMS):
        path = self.write(directory, onnx_sequence_models.accumulator("INT32", 2))
        config = completed(backend, path, text)
        return config, backend.load(config, path)


@pytest.mark.gpu
class TestOnnxRuntimeOnGpu(TestOnnxRuntime):
    device_kind = InstanceKind.KIND_GPU

    @pytest.fixture(autouse=True)
    def needs_a_gpu(self, backend):
        if not backend.gpus():
            pytest.skip("no GPU that this onnxruntime can use: CUDAExecutionProvider is missing")

    def test_it_says_that_it_runs_on_the_gpu(self, loaded) -> None:
        """The provider is what the session reports, not what was asked for."""
        _, instance = loaded
        assert instance.device == "CUDAExecutionProvider"
