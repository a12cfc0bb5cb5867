"""What a gateway's extensions are under its settings: switches, files, and what is refused at the start."""

import json

import pytest
from headrace.deploy.extensions import EXTENSIONS, extensions_of
from headrace.deploy.settings import Settings
from headrace.schemas.errors import ConfigError, Unsupported


def test_by_default_shared_memory_and_traces_are_off():
    with extensions_of(Settings()) as found:
        assert not found.memory.is_allowed
        assert found.traces.shown()["trace_level"] == ["OFF"]
        assert found.logs.shown()["log_info"] is True
        with pytest.raises(Unsupported, match="--allow-client-shm"):
            found.memory.register("r", "k", 0, 1)


def test_the_options_are_those_of_the_extensions(tmp_path):
    given = {
        "allow_client_shm": True,
        "max_shm_regions": 7,
        "trace_file": str(tmp_path / "t.json"),
        "trace_level": "TIMESTAMPS",
        "trace_rate": 1,
        "trace_count": 5,
        "trace_log_frequency": 9,
    }
    assert set(given) == set(EXTENSIONS)
    with extensions_of(Settings(**given)) as found:
        assert "system_shared_memory" in found.names()
        assert found.traces.shown() == {
            "trace_level": ["TIMESTAMPS"],
            "trace_rate": "1",
            "trace_count": "5",
            "log_frequency": "9",
            "trace_file": given["trace_file"],
            "trace_mode": "triton",
        }


def test_PB73_what_has_gathered_is_written_at_the_end(tmp_path):
    """The file is whole when the process has ended."""
    path = tmp_path / "t.json"
    settings = Settings(trace_file=str(path), trace_level="TIMESTAMPS", trace_rate=1)
    with extensions_of(settings) as found:
        trace = found.traces.start("m")
        assert trace is not None
        trace.end()
        assert not path.exists()
    assert json.loads(path.read_text()) == [{"id": 1, "model_name": "m", "model_version": -1}]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trace_level": "TIMESTAMPS"}, "--trace-level = TIMESTAMPS: .*trace file name is not"),
        ({"trace_file": "/nowhere/t.json"}, "--trace-file = /nowhere/t.json: its folder does not"),
    ],
)
def test_settings_under_which_nothing_is_traced_are_refused_at_the_start(given, words):
    with pytest.raises(ConfigError, match=words), extensions_of(Settings(**given)):
        pass
