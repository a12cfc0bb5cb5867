"""The demo's own parts: which files it takes, what its records say, and when it fails."""

import json
from pathlib import Path

import numpy as np
from headrace.deploy.demo import Run, _compare_one, write_repository
from headrace.deploy.demo_files import FileTypes, choose_files
from headrace.deploy.demo_records import Job, label_of, record_of


def test_kinds_take_turns_and_hidden_folders_are_left_out(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.py").write_text("x")
    (tmp_path / "one.gif").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "pack").write_text("x")
    (tmp_path / "link.txt").symlink_to(tmp_path / "one.gif")
    chosen = choose_files(4, [tmp_path, tmp_path])
    assert sorted(path.suffix for path in chosen) == [".gif", ".py", ".py", ".py"]
    assert choose_files(4, [tmp_path]) == chosen
    assert len(choose_files(100, [tmp_path])) == 21


def test_a_record_is_a_v2_header_and_the_tensors_bytes():
    features = np.arange(2048, dtype=np.int32).reshape(1, 2048)
    value, headers = record_of(features)
    length = int(dict(headers)["inference-header-content-length"])
    described = json.loads(value[:length])["inputs"][0]
    assert described["shape"] == [1, 2048]
    assert described["parameters"] == {"binary_data_size": 8192}
    assert np.frombuffer(value[length:], "<i4").tolist() == features.ravel().tolist()


def test_a_label_is_read_from_a_result_and_an_error_keeps_its_text():
    scores = np.array([0.1, 0.7, 0.2], dtype=np.float32).tobytes()
    headers = {"status": b"OK", "inference-header-content-length": b"2"}
    assert label_of(b"{}" + scores, headers, ["a", "b", "c"]) == "b"
    assert label_of(b"sorry", {"status": b"INTERNAL"}, []) == "error: sorry"


def job(latency_s):
    return Job(Path("x"), (1, 1), 0.0, latency_s)


def test_a_run_is_good_only_with_every_answer_equal():
    assert not Run(http_label="txt").is_good, "nothing was asked"
    assert Run(jobs={"0": job(1.0)}, http_label="txt").is_good
    assert not Run(jobs={"0": job(None)}, http_label="txt").is_good, "an answer is missing"
    assert not Run(jobs={"0": job(1.0)}).is_good, "HTTP did not answer"
    wrong = [(Path("x"), "txt", "gif")]
    assert not Run(jobs={"0": job(1.0)}, different=wrong, http_label="txt").is_good


def test_the_repository_and_features_are_magikas_own(tmp_path):
    types = FileTypes()
    write_repository(tmp_path, types)
    folder = tmp_path / "magika"
    assert (folder / "1" / "model.onnx").read_bytes() == types.model_file.read_bytes()
    assert (folder / "labels.txt").read_text().split() == types.labels
    small = tmp_path / "small"
    small.write_text("x")
    assert types.features(small) is None, "its library decides tiny files without the model"
    features = types.features(Path(__file__))
    assert features.shape == (1, 2048)
    assert features.dtype == np.int32
    assert types.verdict(Path(__file__)) == "python"
    assert types.verdict_in_batch(Path(__file__)) == "python"


def test_a_near_tie_is_magikas_own_verdict_either_way_and_anything_else_is_not(tmp_path):
    """One row and several run by different kernels: the library itself then says two things of one file."""
    types = FileTypes()
    path = tmp_path / "unclosed.toml"
    path.write_bytes(b"unclosed='dwdd")
    alone, batched = types.verdict(path), types.verdict_in_batch(path)
    run = Run()
    for label in (alone, batched, "gif"):
        _compare_one(types, run, path, label, alone)
    assert run.equal == 2
    assert run.equal_in_batch == (alone != batched)
    assert run.different == [(path, "gif", alone)]
