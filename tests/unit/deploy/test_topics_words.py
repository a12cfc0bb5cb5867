"""Which topics `headrace topics` lists for a repository's models."""

from __future__ import annotations

from pathlib import Path

from headrace.deploy.commands_topics import specs_of
from headrace.deploy.settings import load_settings
from headrace.repository.layout import scan
from headrace.streams.topology import Topology

CONFIGS = {
    "plain": 'backend: "identity"',
    "off": 'backend: "identity" parameters { key: "idempotency_window_ms" value { string_value: "0" } }',
    "short": 'backend: "identity" '
    'parameters { key: "idempotency_window_ms" value { string_value: "60000" } }',
    "tale": 'backend: "identity" sequence_batching {}',
    "broken": "backend: 7",
}


def list_topics(tmp_path: Path) -> dict[str, dict[str, str | None]]:
    """Return model → topics that are listed beside its requests and results, with their retention."""
    for name, text in CONFIGS.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text, encoding="utf-8")
    settings = load_settings({})
    topology = Topology(prefix="p")
    return {
        name: {
            spec.name.removeprefix(f"p.{name}."): spec.settings.get("retention.ms")
            for spec in specs_of(topology, source, settings)
        }
        for name, source in scan([tmp_path]).sources.items()
    }


def test_P17_a_model_s_own_window_decides_about_its_topic_of_answers(tmp_path):
    listed = list_topics(tmp_path)
    both = {"requests": None, "results": None}
    assert listed["plain"] == {**both, "answers": "3600000"}
    assert listed["off"] == both
    assert listed["short"] == {**both, "answers": "60000"}


def test_a_sequence_model_has_a_topic_of_state_and_none_of_answers(tmp_path):
    assert list_topics(tmp_path)["tale"].keys() == {"requests", "results", "state"}


def test_a_configuration_that_cannot_be_read_is_said_and_hides_no_topic(tmp_path, capsys):
    assert list_topics(tmp_path)["broken"].keys() == {"requests", "results", "answers"}
    assert "the topics of model 'broken' are those of a model without sequences" in " ".join(
        capsys.readouterr().err.split()
    )
