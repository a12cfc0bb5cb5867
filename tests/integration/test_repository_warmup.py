"""Warm-up (SEMANTICS MR-41): every instance answers every sample before its version is READY."""

import numpy as np
import onnx_models
import pytest
from backend_kit import CPU, Listening
from headrace.backends.identity import IdentityBackend
from headrace.repository.repository import Repository
from headrace.schemas.batch import Responses
from headrace.schemas.tensor import Datatype, join_bytes


def config(warmup, *, dims="[2]", datatype="TYPE_FP32", batch=4, rest=""):
    return f"""backend: "identity" max_batch_size: {batch}
        input {{ name: "INPUT0" data_type: {datatype} dims: {dims} }}
        output {{ name: "OUTPUT0" data_type: {datatype} dims: {dims} }}
        instance_group {{ name: "g" count: 2 kind: KIND_CPU }} {rest}
        {warmup}"""


def sample(data, *, name="w", dims="[2]", datatype="TYPE_FP32", size=1, count=0, tensor="INPUT0"):
    return f"""model_warmup {{ name: "{name}" batch_size: {size} count: {count}
        inputs {{ key: "{tensor}" value {{ data_type: {datatype} dims: {dims} {data} }} }} }}"""


def warm(tmp_path, text, files=None):
    """Load one model; return the repository and what its instances executed."""
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/config.pbtxt").write_text(text, encoding="utf-8")
    for name, data in (files or {}).items():
        path = tmp_path / "m" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    backend = Listening()
    repository = Repository([tmp_path], find=lambda _: backend)
    repository.load()
    return repository, backend.heard


def cause_of(repository):
    (cause,) = repository.failures["m"].causes.values()
    return cause


def test_MR_41_samples_run_in_order_on_each_instance_in_turn(tmp_path):
    text = config(
        sample("zero_data: true", name="a", count=2) + sample("random_data: true", name="b")
    )
    repository, heard = warm(tmp_path, text)
    assert repository.is_ready()
    assert [name for name, _ in heard] == ["g_0"] * 3 + ["g_1"] * 3
    for first, second in zip(heard[:3], heard[3:], strict=True):
        np.testing.assert_array_equal(first[1]["INPUT0"], second[1]["INPUT0"])
    assert heard[0][1]["INPUT0"].tolist() == [[0, 0]]
    assert heard[1][1]["INPUT0"].tolist() == [[0, 0]]
    assert heard[2][1]["INPUT0"].any()


def test_MR_41_a_sample_is_as_many_requests_as_its_batch_size(tmp_path):
    _, heard = warm(tmp_path, config(sample("zero_data: true", size=3)))
    assert [inputs["INPUT0"].shape for _, inputs in heard] == [(3, 2), (3, 2)]


def test_MR_41_a_sample_of_batch_size_0_is_skipped(tmp_path):
    text = config(sample('input_data_file: "none.bin"', size=0))
    repository, heard = warm(tmp_path, text)
    assert repository.is_ready()
    assert heard == []


def test_MR_41_a_model_without_batching_gets_one_request_without_batch_axis(tmp_path):
    _, heard = warm(tmp_path, config(sample("zero_data: true"), batch=0))
    assert [inputs["INPUT0"].shape for _, inputs in heard] == [(2,), (2,)]


def test_MR_41_data_come_from_a_file_under_warmup(tmp_path):
    data = np.array([1.5, -2], "<f4").tobytes()
    _, heard = warm(
        tmp_path,
        config(sample('input_data_file: "x.bin"', size=2)),
        {"warmup/x.bin": data},
    )
    assert heard[0][1]["INPUT0"].tolist() == [[1.5, -2], [1.5, -2]]


@pytest.mark.parametrize(
    ("data", "check"),
    [
        ("zero_data: true", lambda items: items == [b"", b""]),
        ("random_data: true", lambda items: all(0 <= int(item) < 100 for item in items)),
        ('input_data_file: "x.bin"', lambda items: items == [b"a", "é".encode()]),
    ],
)
def test_MR_41_bytes_inputs(tmp_path, data, check):
    text = config(sample(data, datatype="TYPE_STRING"), datatype="TYPE_STRING")
    repository, heard = warm(tmp_path, text, {"warmup/x.bin": join_bytes([b"a", "é".encode()])})
    assert repository.failures == {}
    assert check(heard[0][1]["INPUT0"].ravel().tolist())


@pytest.mark.parametrize("datatype", [d for d in Datatype if d is not Datatype.BYTES])
def test_MR_41_random_data_are_sensible_for_every_datatype(tmp_path, datatype):
    """Small and finite, so that a model that indexes by them or divides does not fail for that."""
    name = f"TYPE_{datatype.value}"
    text = config(
        sample("random_data: true", datatype=name, dims="[50]"), datatype=name, dims="[50]"
    )
    repository, heard = warm(tmp_path, text)
    assert repository.failures == {}
    array = heard[0][1]["INPUT0"].ravel()
    if datatype is Datatype.BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    assert len(set(array.tolist())) > 1
    assert (array >= 0).all()
    assert (array < 100).all()


@pytest.mark.parametrize(
    ("warmup", "field", "value", "expected"),
    [
        (sample("zero_data: true", tensor="OTHER"), "model_warmup[w]", "", "unexpected inference input 'OTHER'"),
        (sample("zero_data: true", datatype="TYPE_INT32"), "model_warmup[w]", "",
         "data-type is 'INT32', but model 'm' expects 'FP32'"),
        (sample("zero_data: true", dims="[3]"), "model_warmup[w]", "", "Expected [-1,2], got [1,3]"),
        ('model_warmup { name: "w" batch_size: 1 }', "model_warmup[w]", "", "missing required input(s) ['INPUT0']"),
        (sample("zero_data: true", size=5), "model_warmup[w].batch_size", "5", "expected 0 to 4"),
        (sample('input_data_file: "none.bin"'), "model_warmup[w].inputs[INPUT0].input_data_file", "none.bin",
         "no such file in"),
        (sample('input_data_file: "../1"'), "model_warmup[w].inputs[INPUT0].input_data_file", "../1",
         "expected a path inside"),
        (sample('input_data_file: "short.bin"'), "model_warmup[w]", "", "Expected 8, got 3"),
        (sample("zero_data: true", dims=f"[{2**61}]"), "model_warmup[w].inputs[INPUT0].dims", f"[{2**61}]",
         "expected a shape that fits in memory"),
    ],
)  # fmt: skip
def test_MR_41_a_sample_that_is_no_valid_request_fails_the_load(
    tmp_path, warmup, field, value, expected
):
    repository, heard = warm(tmp_path, config(warmup), {"warmup/short.bin": b"abc"})
    cause = cause_of(repository)
    assert cause.file == str(tmp_path / "m/config.pbtxt")
    assert cause.field == field
    assert cause.value == value
    assert expected in cause.expected
    assert heard == []


@pytest.mark.parametrize("parameter", ["fail_times", "error_if"])
def test_MR_41_an_error_response_fails_the_load(tmp_path, parameter):
    value = {"fail_times": "1", "error_if": "0"}[parameter]
    rest = f'parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}'
    text = config(
        sample("zero_data: true", datatype="TYPE_INT32"), datatype="TYPE_INT32", rest=rest
    )
    repository, heard = warm(tmp_path, text)
    cause = cause_of(repository)
    assert cause.expected.startswith("failed to run warmup sample 'w' on instance 'g_0': ")
    assert (cause.file, cause.value) == (str(tmp_path / "m/config.pbtxt"), "w")
    assert "version 1 is at UNAVAILABLE state" in repository.failures["m"].text
    assert len(heard) == 1
    assert repository.index.rows()[0]["state"] == "UNAVAILABLE"


def test_MR_41_an_instance_that_does_not_answer_fails_the_load(tmp_path):
    class Silent(IdentityBackend):
        def load(self, config, path):
            model = super().load(config, path)
            made = model.instance("g_0", CPU)
            made.execute = lambda batch, emit: emit(Responses({}, final=False))
            model.instance = lambda name, device: made
            return model

    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/config.pbtxt").write_text(config(sample("zero_data: true")), encoding="utf-8")
    repository = Repository([tmp_path], find=lambda _: Silent())
    repository.load()
    assert "the instance gave no final response" in cause_of(repository).expected


def test_MR_41_decoupled_models_are_warmed_up_whatever_they_answer(tmp_path):
    rest = """model_transaction_policy { decoupled: true }
              parameters { key: "responses" value { string_value: "3" } }"""
    repository, heard = warm(tmp_path, config(sample("zero_data: true"), rest=rest))
    assert repository.failures == {}
    assert len(heard) == 2


def test_MR_41_a_real_model_fails_its_load_by_its_warm_up(tmp_path):
    """The model takes indices 0..2 only; the sample asks for more."""
    text = sample('input_data_file: "x.bin"', dims="[1]", datatype="TYPE_INT64", tensor="index")
    onnx_models.write_repository(tmp_path, {"m": onnx_models.picky()}, {"m": text})
    (tmp_path / "m/warmup").mkdir()
    data = tmp_path / "m/warmup/x.bin"
    for index, loads in ((2, True), (99, False)):
        data.write_bytes(np.array([index], "<i8").tobytes())
        repository = Repository([tmp_path])
        assert (repository.load() == {}) is loads
        repository.close()
    assert "failed to run warmup sample 'w'" in cause_of(repository).expected
