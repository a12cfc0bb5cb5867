"""``headrace models check``: what would load and what not, before anything starts."""

import onnx_models
import pytest
from headrace.backends.identity import IdentityBackend
from headrace.repository.check import CheckRow, check
from headrace.repository.prepare import LoadSettings
from headrace.repository.repository import Repository
from headrace.schemas.errors import ConfigError

ECHO = """backend: "identity" input { name: "INPUT0" data_type: TYPE_FP32 dims: [2] }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [2] } """


@pytest.fixture
def repository(tmp_path):
    """Write a repository with one model of each fate."""
    root = onnx_models.write_repository(
        tmp_path / "repository",
        {
            "good": {1: onnx_models.add_sub(), 3: onnx_models.add_sub(3)},
            "typo": onnx_models.mlp(),
            "broken": {1: onnx_models.mlp(), 2: onnx_models.mlp(), 3: onnx_models.mlp()},
        },
        {
            "good": "version_policy { all {} } optimization { eager_batching: true }",
            "typo": "\nmax_bach_size: 3",
            "broken": "version_policy { all {} }",
            "sequence": "sequence_batching { iterative_sequence: true }",
            "warm": ECHO + """model_warmup { name: "w" batch_size: 1
                inputs { key: "INPUT0" value { data_type: TYPE_FP32 dims: [2] input_data_file: "x" } } }""",
        },
    )  # fmt: skip
    for version in (1, 2):
        (root / f"broken/{version}/model.onnx").write_bytes(b"junk")
    (root / "warm/1").mkdir()
    return root


def test_each_failure_has_a_row_with_file_field_value_and_expected(repository):
    """The check goes on after errors, and says the same as loading does."""
    rows = check([repository])
    assert [(row.model, row.versions, row.ok) for row in rows] == [
        ("broken", (1,), False),
        ("broken", (2,), False),
        ("good", (1, 3), True),
        ("sequence", (), False),
        ("typo", (), False),
        ("warm", (1,), False),
    ]
    broken, _, good, sequence, typo, warm = rows
    assert broken.file == str(repository / "broken/1/model.onnx")
    assert broken.backend == "onnxruntime"
    assert "cannot load the model" in broken.expected
    assert good.backend == "onnxruntime"
    assert (good.file, good.field, good.value, good.expected) == ("", "", "", "")
    (warning,) = good.warnings
    assert "optimization.eager_batching = true is ignored" in warning
    assert (sequence.field, sequence.value) == ("sequence_batching.iterative_sequence", "true")
    assert sequence.file == str(repository / "sequence/config.pbtxt")
    assert (typo.file, typo.field) == (
        f"{repository / 'typo/config.pbtxt'}:2",
        "max_bach_size",
    )
    assert typo.expected == "unknown field, did you mean max_batch_size?"
    assert warm.value == "x"
    assert "no such file" in warm.expected
    loaded = Repository([repository])
    failures = loaded.load()
    loaded.close()
    said = {
        (name, cause.file, cause.field, cause.value, cause.expected)
        for name, failure in failures.items()
        for cause in failure.causes.values()
    }
    assert said == {
        (row.model, row.file, row.field, row.value, row.expected) for row in rows if not row.ok
    }


def test_duplicates_have_a_row_each(tmp_path):
    for name in ("one", "two"):
        onnx_models.write_repository(tmp_path / name, {"m": onnx_models.add_sub()})
    assert check([tmp_path / "one", tmp_path / "two"]) == [
        CheckRow(
            "m",
            (),
            "",
            ok=False,
            file=f"{tmp_path / 'one/m'}, {tmp_path / 'two/m'}",
            field="name",
            value="m",
            expected="model appears in two or more repositories, expected one",
        )
    ]


def test_a_single_file_is_checked(tmp_path):
    onnx_models.write_repository(tmp_path, {"m": onnx_models.add_sub()})
    path = (tmp_path / "m/1/model.onnx").rename(tmp_path / "net.onnx")
    assert check([path]) == [CheckRow("net", (1,), "onnxruntime", ok=True)]
    path.write_bytes(b"junk")
    (row,) = check([path])
    assert (row.ok, row.file, row.versions) == (False, str(path), (1,))


def test_no_instance_is_started_and_every_model_is_freed(tmp_path):
    events = []

    class Weights:
        repeatable = True

        def instance(self, name, device):
            events.append("instance")
            raise ConfigError("not in a check")

        def close(self):
            events.append("close")

    class Counting(IdentityBackend):
        def load(self, config, path):
            events.append("load")
            return Weights()

    for name in ("a", "b"):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(ECHO, encoding="utf-8")
    rows = check([tmp_path], find=lambda _: Counting())
    assert [row.ok for row in rows] == [True, True]
    assert events == ["load", "close", "load", "close"]


def test_the_settings_of_loading_hold(tmp_path):
    onnx_models.write_repository(tmp_path, {"m": onnx_models.add_sub()})
    (row,) = check([tmp_path], LoadSettings(auto_complete=False))
    assert not row.ok
    assert row.field == "config.pbtxt"


def test_an_unknown_backend_names_those_that_are_installed(tmp_path):
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/config.pbtxt").write_text('backend: "nothing"', encoding="utf-8")
    (row,) = check([tmp_path])
    assert (row.field, row.value) == ("backend", "nothing")
    assert row.file == str(tmp_path / "m/config.pbtxt")
    assert "expected one of" in row.expected
    assert "onnxruntime" in row.expected


def test_a_repository_that_is_not_there_is_an_error_of_its_own(tmp_path):
    with pytest.raises(
        ConfigError, match="expected an existing repository, model folder or model file"
    ):
        check([tmp_path / "none"])
