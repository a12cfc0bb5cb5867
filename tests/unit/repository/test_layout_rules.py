"""What names in a model repository mean: versions, policies, backends, model names."""

import pytest
from headrace.repository.layout import (
    MAX_NAME_CHARS,
    MAX_VERSION,
    Inferred,
    check_topic_name,
    infer_backend,
    select_versions,
    version_numbers,
)
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import VersionPolicy, VersionPolicyKind

FILE = "models/m/config.pbtxt"
NOTHING = Inferred("", "", "")
LATEST = VersionPolicyKind.LATEST
SPECIFIC = VersionPolicyKind.SPECIFIC


def test_MR_02_versions_are_positive_integers_in_numeric_order():
    assert version_numbers(["10", "9", "2"]) == ([2, 9, 10], [])
    assert version_numbers(["configs", "warmup", "initial_state", "1a", "-1", "1.0", "²", ""]) == (
        [],
        [],
    )
    assert version_numbers([str(MAX_VERSION)]) == ([MAX_VERSION], [])


@pytest.mark.parametrize("name", ["0", "01", "007", str(MAX_VERSION + 1), "9" * 400])
def test_MR_02_what_only_looks_like_a_version_is_skipped_with_a_warning(name):
    numbers, (warning,) = version_numbers(["1", name])
    assert numbers == [1]
    assert f"version directory '{name}' is skipped" in warning
    assert "expected" in warning


@pytest.mark.parametrize(
    ("policy", "chosen", "warned"),
    [
        (VersionPolicy(), (7,), []),
        (VersionPolicy(LATEST, num_versions=2), (3, 7), []),
        (VersionPolicy(LATEST, num_versions=9), (1, 3, 7), []),
        (VersionPolicy(VersionPolicyKind.ALL), (1, 3, 7), []),
        (VersionPolicy(SPECIFIC, versions=(7, 1, 7)), (1, 7), []),
        (VersionPolicy(SPECIFIC, versions=(2, 3)), (3,), ["version 2 is not there"]),
    ],
)
def test_MR_06_version_policies(policy, chosen, warned):
    found, warnings = select_versions(policy, [3, 1, 7], file=FILE)
    assert found == chosen
    assert len(warnings) == len(warned)
    for text, fragment in zip(warnings, warned, strict=True):
        assert text.startswith(FILE)
        assert fragment in text


@pytest.mark.parametrize(
    ("policy", "available", "listed"),
    [
        (VersionPolicy(), [], "none"),
        (VersionPolicy(VersionPolicyKind.ALL), [], "none"),
        (VersionPolicy(SPECIFIC, versions=(2,)), [3, 1], "1, 3"),
    ],
)
def test_MR_03_no_usable_version_is_refused(policy, available, listed):
    with pytest.raises(ConfigError) as caught:
        select_versions(policy, available, file=FILE)
    assert (caught.value.file, caught.value.field) == (FILE, "version_policy")
    assert caught.value.value == policy.kind
    assert caught.value.expected == (
        f"at least one version must be available under the version policy, found {listed}"
    )


@pytest.mark.parametrize("name", ["m", "a.b-c_D9", "x" * MAX_NAME_CHARS, "..."])
def test_a_name_that_a_topic_can_bear_passes(name):
    check_topic_name(name, FILE)


@pytest.mark.parametrize(
    "name", ["my model", "é", "a/b", "", "..", ".", "x" * (MAX_NAME_CHARS + 1), "a\n"]
)
def test_a_name_that_no_topic_can_bear_is_refused_with_the_rule(name):
    """A model's topics are ``<prefix>.<model>.requests`` and so on."""
    with pytest.raises(ConfigError) as caught:
        check_topic_name(name, FILE)
    assert (caught.value.file, caught.value.field, caught.value.value) == (FILE, "name", name)
    assert "1 to 150 characters of a-z, A-Z, 0-9, '.', '_' and '-'" in caught.value.expected


@pytest.mark.parametrize(
    ("given", "name", "contents", "found"),
    [
        # 1. the backend field; platform and file name follow (MR-08)
        (Inferred("onnxruntime", "", ""), "m", [], Inferred("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        (Inferred("onnxruntime", "", "x.onnx"), "m", ["model.plan"],
         Inferred("onnxruntime", "onnxruntime_onnx", "x.onnx")),
        (Inferred("python", "", ""), "m", [], Inferred("python", "", "model.py")),
        (Inferred("openvino", "", ""), "m", [], Inferred("openvino", "", "model.xml")),
        (Inferred("dali", "", ""), "m", [], Inferred("dali", "", "model.dali")),
        (Inferred("custom", "", ""), "m", ["model.onnx"], Inferred("custom", "", "")),
        (Inferred("pytorch", "", ""), "m", [], Inferred("pytorch", "pytorch_libtorch", "model.pt")),
        (Inferred("pytorch", "", ""), "m", ["model.pt2"],
         Inferred("pytorch", "pytorch_libtorch", "model.pt2")),
        # 2. the platform
        (Inferred("", "tensorrt_plan", ""), "m", ["model.onnx"],
         Inferred("tensorrt", "tensorrt_plan", "model.plan")),
        (Inferred("", "onnxruntime_onnx", ""), "m", [],
         Inferred("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        (Inferred("", "pytorch_libtorch", ""), "m", [],
         Inferred("pytorch", "pytorch_libtorch", "model.pt")),
        # 3. the file name
        (Inferred("", "", "v2.onnx"), "m", ["model.plan"],
         Inferred("onnxruntime", "onnxruntime_onnx", "v2.onnx")),
        (Inferred("", "", "model.py"), "m", [], Inferred("python", "", "model.py")),
        # 4. what the first version directory holds
        (NOTHING, "m", ["README", "model.onnx"], Inferred("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        (NOTHING, "m.identity", ["model.plan"], Inferred("tensorrt", "tensorrt_plan", "model.plan")),
        # 5. the model's name
        (NOTHING, "m.identity", [], Inferred("identity", "", "")),
        (NOTHING, "a.b.c", ["other.onnx"], Inferred("b.c", "", "")),
    ],
)  # fmt: skip
def test_MR_08_MR_09_the_backend_is_found_in_order(given, name, contents, found):
    assert infer_backend(given, name, contents, file=FILE) == found


@pytest.mark.parametrize("name", ["m", "m."])
def test_MR_09_nothing_tells_the_backend(name):
    with pytest.raises(ConfigError, match="Could not determine backend") as caught:
        infer_backend(NOTHING, name, ["weights.bin"], file=FILE)
    assert (caught.value.file, caught.value.field) == (FILE, "backend")
    assert f"'{name}'" in caught.value.expected
    assert "model.onnx" in caught.value.expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Inferred("", "caffe2_netdef", ""), "expected one of tensorrt_plan, onnxruntime_onnx"),
        (Inferred("onnxruntime", "tensorrt_plan", ""), "expected a platform of backend 'onnxruntime'"),
    ],
)  # fmt: skip
def test_MR_09_an_unknown_or_contradicting_platform_is_refused(given, expected):
    with pytest.raises(ConfigError) as caught:
        infer_backend(given, "m", [], file=FILE)
    assert caught.value.file == FILE
    assert caught.value.field == "platform"
    assert caught.value.value == given.platform
    assert expected in caught.value.expected
