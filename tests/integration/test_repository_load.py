"""Loading whole repositories with real model files: what serves, what does not, and what everybody is told."""

import threading
from pathlib import Path

import numpy as np
import onnx_models
import pytest
from backend_kit import batch_of, run_one
from headrace.backends.identity import IdentityBackend
from headrace.repository.models import WHOLE_MODEL
from headrace.repository.prepare import LoadSettings
from headrace.repository.repository import Repository
from headrace.schemas.config_text import config_to_json
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import InstanceGroup, InstanceKind

ECHO = """backend: "identity" max_batch_size: 4
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [2] }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] } """


def script(name, value):
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }} '


def echo(path: Path, name: str, text: str = ECHO, versions=(1,)) -> Path:
    """Write a model of the identity backend, which needs no model file."""
    for version in versions:
        (path / name / str(version)).mkdir(parents=True)
    (path / name / "config.pbtxt").write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def opened():
    """Open repositories and close them when the test ends."""
    repositories = []

    def open_repository(*paths, find=None, **settings):
        how = {} if find is None else {"find": find}
        repository = Repository(paths, LoadSettings(**settings), **how)
        repositories.append(repository)
        repository.load()
        return repository

    yield open_repository
    for repository in repositories:
        repository.close()


def version_of(repository, model, number=1):
    """Return one loaded version of a model."""
    return repository.models[model].versions[number]


def test_MR_01_a_repository_without_configurations_serves(tmp_path, opened):
    """AC-02, MR-30, MR-33: everything is read from the model file and shown on the config endpoint."""
    repository = opened(
        onnx_models.write_repository(
            tmp_path, {"mlp": onnx_models.mlp(), "simple": onnx_models.add_sub()}
        )
    )
    assert repository.failures == {}
    assert repository.is_ready()
    assert repository.index.rows() == [
        {"name": "mlp", "version": "1", "state": "READY"},
        {"name": "simple", "version": "1", "state": "READY"},
    ]
    version = version_of(repository, "mlp")
    assert version.config.instance_groups == (InstanceGroup("mlp", InstanceKind.KIND_CPU, 2),)
    assert [instance.name for instance in version.instances] == ["mlp_0", "mlp_1"]
    assert version.config.platform == "onnxruntime_onnx"
    shown = config_to_json(version.config)
    assert shown["max_batch_size"] == 4
    assert shown["dynamic_batching"]["preferred_batch_size"] == [4]
    assert shown["instance_group"][0]["name"] == "mlp"
    assert shown["instance_group"][0]["count"] == 2
    assert shown["default_model_filename"] == "model.onnx"
    x = np.ones((1, 128), np.float32)
    for instance in version.instances:
        outputs = run_one(instance, batch_of(version.config, {"x": x}))
        np.testing.assert_allclose(outputs["y"], onnx_models.mlp_expected(x), rtol=1e-3)


def test_AC_02_the_batch_size_of_auto_complete_is_a_setting(tmp_path, opened):
    onnx_models.write_repository(tmp_path, {"mlp": onnx_models.mlp()})
    config = version_of(opened(tmp_path, default_max_batch_size=32), "mlp").config
    assert config.max_batch_size == 32
    assert config.dynamic_batching.preferred_batch_size == (32,)


def test_AC_01_without_auto_complete_a_configuration_must_be_whole(tmp_path, opened):
    whole = """max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [128] }
               output { name: "y" data_type: TYPE_FP32 dims: [10] }"""
    onnx_models.write_repository(
        tmp_path,
        dict.fromkeys(["whole", "part", "none"], onnx_models.mlp()),
        {"whole": whole, "part": "max_batch_size: 8"},
    )
    repository = opened(tmp_path, auto_complete=False)
    assert list(repository.models) == ["whole"]
    (part,) = repository.failures["part"].causes.values()
    assert (part.file, part.field) == (str(tmp_path / "part/config.pbtxt"), "input")
    assert part.expected == "expected at least one input"
    (none,) = repository.failures["none"].causes.values()
    assert (none.file, none.field) == (str(tmp_path / "none"), "config.pbtxt")
    assert none.expected == "expected a config.pbtxt, as auto-complete is switched off"


def test_MR_06_versions_are_served_by_policy(tmp_path, opened):
    versions = {number: onnx_models.add_sub(number) for number in (1, 2, 3)}
    onnx_models.write_repository(
        tmp_path,
        {"latest": versions, "all": versions, "some": versions},
        {
            "all": "version_policy { all {} }",
            "some": "version_policy { specific { versions: [1, 7] } }",
        },
    )
    repository = opened(tmp_path)
    assert {name: list(model.versions) for name, model in sorted(repository.models.items())} == {
        "all": [1, 2, 3],
        "latest": [3],
        "some": [1],
    }
    assert repository.models["some"].warnings == (
        f"{tmp_path / 'some/config.pbtxt'}: version 7 is not there and is skipped",
    )
    ones = {name: np.ones((1, 16), np.int32) for name in ("INPUT0", "INPUT1")}
    for number, doubled in ((1, "OUTPUT0"), (2, "OUTPUT1")):
        version = version_of(repository, "all", number)
        outputs = run_one(version.instances[0], batch_of(version.config, ones))
        assert outputs[doubled].tolist() == [[2] * 16]


def test_L0_lifecycle_a_model_that_does_not_parse_keeps_no_other_from_serving(
    tmp_path, opened, caplog
):
    """§5.5 with exit-on-error off: live, not ready, others ready, the bad one UNAVAILABLE with its reason."""
    onnx_models.write_repository(
        tmp_path,
        {"good": onnx_models.mlp(), "bad": onnx_models.mlp()},
        {"bad": 'max_batch_size: 4\nbackend: "onnxruntime" max_bach_size: 3'},
    )
    repository = opened(tmp_path)
    reason = f"{tmp_path / 'bad/config.pbtxt'}:2: max_bach_size: unknown field, did you mean max_batch_size?"
    assert repository.index.rows() == [
        {"name": "bad", "state": "UNAVAILABLE", "reason": reason},
        {"name": "good", "version": "1", "state": "READY"},
    ]
    assert not repository.is_ready()
    assert repository.is_ready(strict=False)
    assert list(repository.models) == ["good"]
    assert repository.failures["bad"].text == f"load failed for model 'bad': {reason}"
    assert list(repository.failures["bad"].causes) == [WHOLE_MODEL]
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == [
        repository.failures["bad"].text
    ]


def test_L0_lifecycle_zero_prefixed_and_other_directories_are_ignored(tmp_path, opened, caplog):
    """MR-02, §5.5; the warning is logged once."""
    onnx_models.write_repository(tmp_path, {"m": {1: onnx_models.add_sub(1)}})
    for name in ("02", "abc"):
        (tmp_path / "m" / name).mkdir()
    repository = opened(tmp_path)
    assert list(repository.models["m"].versions) == [1]
    warned = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert warned == list(repository.models["m"].warnings)
    assert "version directory '02' is skipped" in warned[0]
    assert len(warned) == 1


def test_MR_05_duplicates_are_not_served_and_say_so(tmp_path, opened):
    """§5.5: two repositories hold the same name; the others load."""
    one = onnx_models.write_repository(
        tmp_path / "one", {"m": onnx_models.mlp(), "a": onnx_models.mlp()}
    )
    two = onnx_models.write_repository(
        tmp_path / "two", {"m": onnx_models.mlp(), "b": onnx_models.mlp()}
    )
    repository = opened(one, two)
    assert sorted(repository.models) == ["a", "b"]
    assert repository.index.rows()[2] == {
        "name": "m",
        "state": "UNAVAILABLE",
        "reason": "model appears in two or more repositories",
    }
    assert not repository.is_ready()
    (cause,) = repository.failures["m"].causes.values()
    assert cause.file == f"{one / 'm'}, {two / 'm'}"
    assert (cause.field, cause.value) == ("name", "m")


def test_MC_05_MC_10_versions_load_as_a_unit(tmp_path, opened):
    """One failing version keeps the other from serving; the sentence has Triton's shape."""
    onnx_models.write_repository(
        tmp_path,
        {"m": {1: onnx_models.add_sub(1), 2: onnx_models.add_sub(2)}},
        {"m": "version_policy { all {} }"},
    )
    broken = tmp_path / "m/1/model.onnx"
    broken.write_bytes(b"this is no model")
    repository = opened(tmp_path)
    assert repository.models == {}
    failure = repository.failures["m"]
    assert list(failure.causes) == [1]
    assert failure.causes[1].file == str(broken)
    assert failure.text.startswith(
        "load failed for model 'm': version 1 is at UNAVAILABLE state: "
    )
    assert failure.text.endswith(";")
    rows = repository.index.rows()
    assert [row["state"] for row in rows] == ["UNAVAILABLE", "UNAVAILABLE"]
    assert str(broken) in rows[0]["reason"]
    assert rows[1]["reason"] == "unloaded"
    assert not repository.is_ready()


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_a_broken_or_missing_model_file_is_named_with_its_version(tmp_path, opened, content):
    onnx_models.write_repository(
        tmp_path, {"m": onnx_models.mlp()}, {"m": 'backend: "onnxruntime"'}
    )
    path = tmp_path / "m/1/model.onnx"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    repository = opened(tmp_path)
    (cause,) = repository.failures["m"].causes.values()
    assert cause.file == str(path)
    assert cause.expected
    assert "version 1 is at UNAVAILABLE state" in repository.failures["m"].text
    assert repository.index.rows() == [
        {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": str(cause)}
    ]


def test_versions_must_agree_with_the_one_configuration_of_the_model(tmp_path, opened):
    """It is completed from the highest version; version 1 has other sizes and is named."""
    onnx_models.write_repository(
        tmp_path,
        {"m": {1: onnx_models.add_sub(size=8), 2: onnx_models.add_sub(size=16)}},
        {"m": "version_policy { all {} }"},
    )
    failure = opened(tmp_path).failures["m"]
    assert list(failure.causes) == [1]
    assert failure.causes[1].file == str(tmp_path / "m/1/model.onnx")
    assert "INPUT0" in str(failure.causes[1])


@pytest.mark.parametrize(
    ("text", "field", "value", "expected"),
    [
        ('name: "other"', "name", "other", "directory name must equal model name"),
        ("max_batch_size: -1", "max_batch_size", "-1", "expected a non-negative integer"),
        ('platform: "ensemble" ensemble_scheduling {}', "ensemble_scheduling", "{}", "does not chain models"),
        ("sequence_batching { iterative_sequence: true }", "sequence_batching.iterative_sequence", "true",
         "calls a model once per request"),
        ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled", "true",
         "exactly one response per request"),
        ("version_policy { specific { versions: [4] } }", "version_policy", "specific", "found 1"),
        ('backend: "onnxrutime"', "backend", "onnxrutime", "no such backend is installed"),
        ('default_model_filename: "../1/model.onnx"', "default_model_filename", "../1/model.onnx",
         "expected a path inside"),
        ("dynamic_batching { preferred_batch_size: [5] }", "dynamic_batching.preferred_batch_size", "5",
         "expected sizes from 1 to max_batch_size (4)"),
        ('output { name: "y" data_type: TYPE_FP32 dims: [10] label_filename: "../x" }',
         "output[y].label_filename", "../x", "expected a path inside"),
        ('parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "x" } }',
         "parameters[TRITON_BATCH_STRATEGY_PATH]", "x", "no batching library"),
    ],
)  # fmt: skip
def test_every_failure_names_file_field_value_and_what_was_expected(
    tmp_path, opened, text, field, value, expected
):
    """…and is the reason in the index."""
    onnx_models.write_repository(tmp_path, {"m": onnx_models.mlp()}, {"m": text})
    repository = opened(tmp_path)
    (cause,) = repository.failures["m"].causes.values()
    assert cause.file == str(tmp_path / "m/config.pbtxt")
    assert cause.field == field
    assert cause.value == value
    assert expected in cause.expected
    assert repository.index.rows()[0]["reason"] == str(cause)


def test_a_model_whose_name_no_topic_can_bear_is_refused_with_the_rule(tmp_path, opened):
    onnx_models.write_repository(
        tmp_path, {"my model": onnx_models.mlp(), "ok": onnx_models.mlp()}
    )
    repository = opened(tmp_path)
    assert list(repository.models) == ["ok"]
    (cause,) = repository.failures["my model"].causes.values()
    assert (cause.file, cause.field) == (str(tmp_path / "my model"), "name")
    assert "a-z, A-Z, 0-9" in cause.expected


def test_MR_03_a_model_without_versions_is_refused(tmp_path, opened):
    (tmp_path / "m").mkdir()
    (cause,) = opened(tmp_path).failures["m"].causes.values()
    assert cause.file == str(tmp_path / "m")
    assert (
        cause.expected
        == "at least one version must be available under the version policy, found none"
    )


def test_MR_09_a_backend_may_be_named_by_the_model(tmp_path, opened):
    text = ECHO.replace('backend: "identity"', "")
    repository = opened(echo(tmp_path, "m.identity", text))
    assert version_of(repository, "m.identity").config.backend == "identity"


def test_MR_10_external_data_lies_in_a_directory(tmp_path, opened):
    onnx_models.write_external(tmp_path / "m/1", onnx_models.mlp())
    repository = opened(tmp_path)
    version = version_of(repository, "m")
    x = np.ones((1, 128), np.float32)
    outputs = run_one(version.instances[0], batch_of(version.config, {"x": x}))
    np.testing.assert_allclose(outputs["y"], onnx_models.mlp_expected(x), rtol=1e-3)


def test_MR_13_another_configuration_is_read_by_name(tmp_path, opened):
    onnx_models.write_repository(tmp_path, {"m": onnx_models.mlp()}, {"m": "max_batch_size: 2"})
    (tmp_path / "m/configs").mkdir()
    (tmp_path / "m/configs/big.pbtxt").write_text("max_batch_size: 64", encoding="utf-8")
    assert version_of(opened(tmp_path), "m").config.max_batch_size == 2
    assert version_of(opened(tmp_path, config_name="big"), "m").config.max_batch_size == 64


def test_MR_26_labels_come_with_the_version(tmp_path, opened):
    text = 'output { name: "y" data_type: TYPE_FP32 dims: [10] label_filename: "labels.txt" }'
    onnx_models.write_repository(tmp_path, {"m": onnx_models.mlp()}, {"m": text})
    (tmp_path / "m/labels.txt").write_text("zero\none\n", encoding="utf-8")
    assert version_of(opened(tmp_path), "m").labels == {"y": ("zero", "one")}


def test_MR_30_every_group_gets_its_instances(tmp_path, opened):
    text = (
        ECHO + "instance_group [ { count: 2 kind: KIND_CPU }, { name: 'extra' kind: KIND_MODEL } ]"
    )
    version = version_of(opened(echo(tmp_path, "m", text)), "m")
    assert [instance.name for instance in version.instances] == ["m_0_0", "m_0_1", "extra_0"]


def test_a_gpu_that_is_not_there_fails_the_load(tmp_path, opened):
    onnx_models.write_repository(
        tmp_path, {"m": onnx_models.mlp()}, {"m": "instance_group { kind: KIND_GPU gpus: [99] }"}
    )
    (cause,) = opened(tmp_path).failures["m"].causes.values()
    assert cause.file
    assert cause.expected


def test_a_single_file_serves_without_being_copied(tmp_path, opened):
    onnx_models.write_repository(tmp_path, {"m": onnx_models.mlp()})
    path = (tmp_path / "m/1/model.onnx").rename(tmp_path / "my net.onnx")
    repository = opened(path)
    version = version_of(repository, "my_net")
    assert version.version == 1
    assert version.config.max_batch_size == 4
    assert version.config.default_model_filename == "my net.onnx"
    x = np.ones((2, 128), np.float32)
    outputs = run_one(version.instances[0], batch_of(version.config, {"x": x}))
    np.testing.assert_allclose(outputs["y"], onnx_models.mlp_expected(x), rtol=1e-3)


def test_a_single_file_may_be_a_directory_with_external_data(tmp_path, opened):
    made = onnx_models.write_external(tmp_path / "x", onnx_models.mlp())
    path = made.rename(tmp_path / "net.onnx")
    assert version_of(opened(path), "net").config.max_batch_size == 4


def test_hints_are_logged_once_per_model(tmp_path, opened, caplog):
    text = (
        ECHO
        + "optimization { eager_batching: true } instance_group { count: 3 kind: KIND_CPU host_policy: 'x' }"
    )
    opened(echo(tmp_path, "m", text, versions=(1, 2)))
    warned = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 2
    assert all("is ignored" in warning and "config.pbtxt" in warning for warning in warned)


def test_MC_04_models_load_at_once(tmp_path, opened):
    """Two models that each wait for the other's load both load."""
    meet = threading.Barrier(2)

    class Meeting(IdentityBackend):
        def load(self, config, path):
            meet.wait(30)
            return super().load(config, path)

    echo(tmp_path, "a")
    echo(tmp_path, "b")
    repository = opened(tmp_path, find=lambda _: Meeting(), load_threads=2)
    assert sorted(repository.models) == ["a", "b"]


def test_MC_04_a_failed_load_is_tried_again(tmp_path, opened, caplog):
    class Shaky(IdentityBackend):
        loads = 0

        def load(self, config, path):
            self.loads += 1
            if self.loads < 3:
                raise ConfigError("not yet")
            return super().load(config, path)

    echo(tmp_path, "m")
    assert opened(tmp_path, find=lambda _: Shaky(), retry_count=1).models == {}
    caplog.clear()
    repository = opened(tmp_path, find=lambda _: Shaky(), retry_count=2)
    assert repository.is_ready()
    assert sum("tried again" in record.message for record in caplog.records) == 2


@pytest.mark.parametrize("where", ["complete", "load", "instance", "import"])
def test_a_backend_that_raises_anything_fails_only_its_own_model(tmp_path, opened, where):
    """A backend may be anybody's package."""

    class Instances:
        repeatable = True
        closed = 0

        def instance(self, name, device):
            raise ZeroDivisionError("oops")

        def close(self):
            Instances.closed += 1

    class Wild(IdentityBackend):
        def complete(self, config, path):
            if where == "complete":
                raise ZeroDivisionError("oops")
            return config

        def load(self, config, path):
            if where == "load":
                raise ZeroDivisionError("oops")
            return Instances()

    def find(name):
        if name == "identity":
            return IdentityBackend()
        if where == "import":
            raise ZeroDivisionError("oops")
        return Wild()

    echo(tmp_path, "good")
    echo(tmp_path, "wild", ECHO.replace("identity", "wild"))
    repository = opened(tmp_path, find=find)
    assert list(repository.models) == ["good"]
    (cause,) = repository.failures["wild"].causes.values()
    assert str(tmp_path / "wild") in cause.file
    assert cause.field == "backend"
    assert "the backend raised ZeroDivisionError: oops" in cause.expected
    assert Instances.closed == (1 if where == "instance" else 0)


def test_close_goes_in_reverse_and_the_index_says_unloaded(tmp_path):
    closed = []

    class Part:
        repeatable = True
        concurrency = 1
        device = "CPU"

        def __init__(self, name):
            self.name = name

        def instance(self, name, device):
            return Part(name)

        def healthy(self):
            return True

        def close(self):
            closed.append(self.name)

    class Plain(IdentityBackend):
        def load(self, config, path):
            return Part(f"weights {path.name}")

    text = ECHO + "version_policy { all {} } instance_group { count: 2 kind: KIND_CPU name: 'g' }"
    echo(tmp_path, "m", text, versions=(1, 2))
    repository = Repository([tmp_path], find=lambda _: Plain())
    repository.load()
    repository.close()
    assert closed == ["g_1", "g_0", "weights 2", "g_1", "g_0", "weights 1"]
    assert repository.models == {}
    assert {(row["state"], row["reason"]) for row in repository.index.rows()} == {
        ("UNAVAILABLE", "unloaded")
    }
    repository.close()
    assert len(closed) == 6


def test_SV_04_SV_05_an_unhealthy_instance_shows_in_readiness(tmp_path, opened):
    repository = opened(echo(tmp_path, "m", ECHO + script("healthy_executions", 1)))
    version = version_of(repository, "m")
    assert version.healthy()
    assert repository.is_ready()
    row = {"INPUT0": np.zeros((1, 2), np.float32)}
    run_one(version.instances[0], batch_of(version.config, row))
    assert not version.healthy()
    assert not repository.is_ready()
    assert repository.is_ready(strict=False)


def test_MC_01_what_changes_on_disk_after_the_load_is_ignored(tmp_path, opened):
    repository = opened(echo(tmp_path, "m", ECHO))
    (tmp_path / "m" / "2").mkdir()
    (tmp_path / "later" / "1").mkdir(parents=True)
    assert list(repository.models) == ["m"]
    assert repository.index.rows() == [{"name": "m", "version": "1", "state": "READY"}]
    assert list(repository.models["m"].versions) == [1]
