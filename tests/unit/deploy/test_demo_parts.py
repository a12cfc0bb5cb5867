"""The demo's own parts: which files it takes, what its records say, and when it fails."""

import json
from pathlib import Path

import numpy as np
import pytest
from headrace.deploy.demo import Run, _compare_one, write_repository
from headrace.deploy.demo_files import FileTypes, choose_files
from headrace.deploy.demo_records import Job, label_of, record_of
from headrace.deploy.demo_report import verdict_of


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


def run_of(count=1, least=1, equal=None, latency_s=1.0, http_label="txt", **more):
    jobs = {str(number): Job(Path("x"), (1, 1), 0.0, latency_s) for number in range(count)}
    return Run(least, jobs, equal=count if equal is None else equal, http_label=http_label, **more)


def test_a_run_is_good_only_with_every_answer_equal():
    assert not run_of(count=0, least=0).is_good, "nothing was asked"
    assert run_of().is_good
    assert not run_of(latency_s=None).is_good, "an answer is missing"
    assert not run_of(http_label="").is_good, "HTTP did not answer"
    assert not run_of(different=[(Path("x"), "txt", "gif")]).is_good


def test_a_run_is_good_only_with_enough_answers_that_were_compared():
    assert Run().least == 1000
    assert run_of(count=1000, least=1000).is_good
    assert not run_of(count=999, least=1000).is_good
    assert not run_of(count=1000, least=1000, equal=0, changed=1000).is_good, "all files changed"
    assert not run_of(equal=0, changed=1).is_good


def test_the_closing_sentence_says_how_many_equal_which_verdict():
    assert verdict_of(run_of(count=9)) == (
        "All answers are Magika's own: of 9 files asked about, 9 equal Magika's verdict of the file alone."
    )
    assert (
        "of 9 files asked about, 7 equal Magika's verdict of the file alone, 2 only its verdict"
        in (verdict_of(run_of(count=9, equal_in_batch=2)))
    )
    failed = verdict_of(run_of(count=9, equal=0, least=1000, changed=8, gone=1))
    assert failed.startswith("Of 9 files asked about, 0 equal")
    assert "files changed meanwhile: 9" in failed
    assert "expected at least 1000" in failed


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
        _compare_one(types, run, Job(path, Job.stamp_of(path), 0.0, 1.0, label))
    assert run.equal == 2
    assert run.equal_in_batch == (alone != batched)
    assert run.different == [(path, "gif", alone)]


def test_a_file_that_changes_or_goes_away_is_told_and_counts_as_neither(tmp_path):
    types = FileTypes()
    written, deleted = tmp_path / "written.py", tmp_path / "deleted.py"
    run = Run()
    for number, path in enumerate((written, deleted)):
        path.write_text("import os\n" * 20)
        run.jobs[str(number)] = Job(path, Job.stamp_of(path), 0.0, 1.0, "python")
    written.write_text("import os\n" * 21)
    deleted.unlink()
    for job in run.jobs.values():
        _compare_one(types, run, job)
    assert (run.changed, run.equal, run.different) == (2, 0, [])
    for ask in (types.features, types.verdict, types.verdict_in_batch):
        with pytest.raises(FileNotFoundError, match=r"deleted\.py"):
            ask(deleted)
