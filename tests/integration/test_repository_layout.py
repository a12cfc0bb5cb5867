"""Model repositories on disk: where models are found, which files belong to them, and what leads outside."""

import sys
from pathlib import Path

import onnx
import onnx_models
import pytest
from headrace.repository.files import model_path, read_labels
from headrace.repository.layout import (
    config_path,
    read_model,
    scan,
    single_file_repository,
)
from headrace.schemas.config_text import config_from_message, parse_config
from headrace.schemas.errors import ConfigError

FILE = "config.pbtxt"


def touch(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_MR_01_models_are_directories_and_versions_theirs(tmp_path):
    touch(tmp_path / "README.md")
    touch(tmp_path / ".git/config")
    touch(tmp_path / "b/1/model.onnx")
    touch(tmp_path / "b/config.pbtxt")
    touch(tmp_path / "b/labels.txt")
    touch(tmp_path / "a/2/model.onnx")
    touch(tmp_path / "a/10/model.onnx")
    touch(tmp_path / "a/configs/x.pbtxt")
    touch(tmp_path / "a/warmup/data.bin")
    touch(tmp_path / "a/3")  # a file is no version
    found = scan([tmp_path])
    assert list(found.sources) == ["a", "b"]
    assert found.duplicates == {}
    assert list(found.sources["a"].versions) == [2, 10]
    assert found.sources["a"].versions[10] == tmp_path / "a/10"
    assert found.sources["a"].contents() == {"model.onnx"}
    assert found.sources["a"].warnings == ()


def test_MR_02_zero_prefixed_versions_are_ignored_with_a_warning(tmp_path):
    touch(tmp_path / "m/01/model.onnx")
    touch(tmp_path / "m/1/model.onnx")
    source = read_model(tmp_path / "m")
    assert list(source.versions) == [1]
    (warning,) = source.warnings
    assert str(tmp_path / "m") in warning
    assert "version directory '01' is skipped" in warning


def test_MR_05_a_name_in_two_repositories_is_a_duplicate(tmp_path):
    for repository in ("one", "two"):
        touch(tmp_path / repository / "m/1/model.onnx")
        touch(tmp_path / repository / repository / "1/model.onnx")
    found = scan([tmp_path / "one", tmp_path / "two"])
    assert sorted(found.sources) == ["one", "two"]
    assert found.duplicates == {"m": (tmp_path / "one/m", tmp_path / "two/m")}


def test_a_repository_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        scan([tmp_path / "none"])
    assert caught.value.field == "model repository"
    assert caught.value.value == str(tmp_path / "none")
    assert caught.value.expected == "expected an existing repository, model folder or model file"


@pytest.mark.parametrize("paths", [[], ["empty"]])
def test_an_empty_repository_is_refused_with_the_layout(tmp_path, paths):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError) as caught:
        scan([tmp_path / path for path in paths])
    assert caught.value.field == "model repository"
    assert "<repository>/<model>/1/model.onnx" in caught.value.expected


def test_a_linked_model_directory_is_a_model(tmp_path):
    touch(tmp_path / "store/abc/1/model.onnx")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository/m").symlink_to(tmp_path / "store/abc")
    (tmp_path / "repository/gone").symlink_to(tmp_path / "nowhere")
    found = scan([tmp_path / "repository"])
    assert list(found.sources) == ["m"]
    assert list(found.sources["m"].versions) == [1]


def test_a_single_file_is_a_model_without_a_repository(tmp_path):
    path = touch(tmp_path / "my model (1).onnx")
    source = single_file_repository(path)
    assert source.name == "my_model__1_"
    assert source.versions == {1: tmp_path}
    assert source.path == path
    assert source.contents() == {"my model (1).onnx"}
    assert config_path(source) is None
    assert model_path(source, 1, path.name, file=FILE) == path
    assert list(scan([path]).sources) == ["my_model__1_"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("weights.bin", "weights.bin", "expected a model file (.dali, .graphdef, .onnx"),
        ("none.onnx", "none.onnx", "no such file or directory"),
        ("x" * 151 + ".onnx", "x" * 151, "a model's topics bear its name"),
    ],
)
def test_a_single_file_that_cannot_be_served_is_refused(tmp_path, name, value, expected):
    if name != "none.onnx":
        touch(tmp_path / name)
    with pytest.raises(ConfigError) as caught:
        single_file_repository(tmp_path / name)
    assert caught.value.value.endswith(value)
    assert expected in caught.value.expected


def test_a_model_directory_is_served_without_its_repository(tmp_path):
    touch(tmp_path / "with_config/config.pbtxt")
    touch(tmp_path / "with_versions/2/model.onnx")
    assert single_file_repository(tmp_path / "with_config").name == "with_config"
    assert list(single_file_repository(tmp_path / "with_versions").versions) == [2]
    # Given as a repository, it is understood as well; their parent is a repository all the same.
    assert list(scan([tmp_path / "with_config"]).sources) == ["with_config"]
    assert list(scan([tmp_path]).sources) == ["with_config", "with_versions"]


def test_a_model_may_be_called_like_a_version(tmp_path):
    touch(tmp_path / "1/1/model.onnx")
    touch(tmp_path / "2/config.pbtxt")
    assert list(scan([tmp_path]).sources) == ["1", "2"]


def test_a_model_directory_keeps_its_name_when_given_as_a_dot(tmp_path, monkeypatch):
    touch(tmp_path / "m/1/model.onnx")
    monkeypatch.chdir(tmp_path / "m")
    assert single_file_repository(Path()).name == "m"


def test_MR_13_another_configuration_is_chosen_by_name(tmp_path):
    touch(tmp_path / "m/config.pbtxt")
    touch(tmp_path / "m/configs/gpu.pbtxt")
    source = read_model(tmp_path / "m")
    assert config_path(source) == tmp_path / "m/config.pbtxt"
    assert config_path(source, "gpu") == tmp_path / "m/configs/gpu.pbtxt"
    assert config_path(source, "cpu") == tmp_path / "m/config.pbtxt"
    (tmp_path / "m/config.pbtxt").unlink()
    assert config_path(source, "cpu") is None


def test_MR_08_MR_10_the_model_file_of_a_version(tmp_path):
    touch(tmp_path / "m/1/model.onnx")
    touch(tmp_path / "m/2/other.onnx")
    external = onnx_models.write_external(tmp_path / "m/3", onnx_models.mlp())
    source = read_model(tmp_path / "m")
    assert model_path(source, 1, "model.onnx", file=FILE) == tmp_path / "m/1/model.onnx"
    assert model_path(source, 2, "other.onnx", file=FILE) == tmp_path / "m/2/other.onnx"
    inner = model_path(source, 3, "model.onnx", file=FILE)
    assert inner == external / "model.onnx"
    assert onnx.load(inner).graph.name  # with its external data
    assert model_path(source, 1, "", file=FILE) == tmp_path / "m/1"


def test_a_missing_model_file_is_named_with_what_is_there(tmp_path):
    touch(tmp_path / "m/1/model.onxx")
    with pytest.raises(ConfigError) as caught:
        model_path(read_model(tmp_path / "m"), 1, "model.onnx", file=FILE)
    assert caught.value.file == str(tmp_path / "m/1/model.onnx")
    assert caught.value.field == "default_model_filename"
    assert caught.value.value == "model.onnx"
    assert caught.value.expected == "no such model file, the version directory holds model.onxx"


@pytest.mark.parametrize("name", ["../2/model.onnx", "/etc/hostname", "x/../../2/model.onnx"])
def test_a_model_file_outside_its_version_is_refused(tmp_path, name):
    touch(tmp_path / "m/1/model.onnx")
    touch(tmp_path / "m/2/model.onnx")
    with pytest.raises(ConfigError, match="expected a path inside") as caught:
        model_path(read_model(tmp_path / "m"), 1, name, file=FILE)
    assert (caught.value.file, caught.value.field) == (FILE, "default_model_filename")
    assert caught.value.value == name


def labels_of(tmp_path, filename):
    text = f'output {{ name: "y" data_type: TYPE_FP32 dims: [3] label_filename: "{filename}" }}'
    config = config_from_message(parse_config(text, FILE), file=FILE, directory_name="m")
    return read_labels(config, tmp_path / "m", file=FILE)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("cat\ndog\n", ("cat", "dog")),
        ("cat\r\ndog", ("cat", "dog")),
        ("a\u2028b\n\nc\n", ("a\u2028b", "", "c")),
        ("", ()),
    ],
)
def test_MR_26_labels_are_lines(tmp_path, text, labels):
    path = tmp_path / "m/labels.txt"
    path.parent.mkdir()
    path.write_bytes(text.encode())
    assert labels_of(tmp_path, "labels.txt") == {"y": labels}


def test_MR_26_an_output_without_labels_has_none(tmp_path):
    assert labels_of(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../secret.txt", "expected a path inside"),
        ("/etc/hostname", "expected a path inside"),
        ("link.txt", "expected a path inside"),
        ("none.txt", "no such file in"),
        (
            "circle.txt",
            "no such file in" if sys.version_info >= (3, 13) else "expected a path inside",
        ),
        ("nul\\0.txt", "expected a path inside"),
        ("binary.txt", "expected UTF-8 text, byte 1 is not"),
        ("folder", "cannot be read"),
    ],
)
def test_MR_26_a_label_file_stays_inside_the_model_directory(tmp_path, name, expected):
    touch(tmp_path / "secret.txt", "secret")
    touch(tmp_path / "m/folder/x")
    (tmp_path / "m/link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "m/circle.txt").symlink_to("circle.txt")
    (tmp_path / "m/binary.txt").write_bytes(b"a\xff")
    with pytest.raises(ConfigError) as caught:
        labels_of(tmp_path, name)
    assert caught.value.file == FILE
    assert caught.value.field == "output[y].label_filename"
    assert caught.value.value == name.replace("\\0", "\0")
    assert expected in caught.value.expected
