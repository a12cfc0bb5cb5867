"""Triton's trace settings: what may be set, who is sampled, and what is written (SEMANTICS PB-73)."""

import json

import pytest
from headrace.schemas.errors import Code, InferError
from headrace.streams.trace_settings import MAX_GATHERED, TraceSetting, TraceSettings

ON = {"trace_level": ["TIMESTAMPS"]}


class Written:
    """A writer that keeps what it gets."""

    def __init__(self):
        """Begin without files."""
        self.main = []
        self.numbered = []

    def append(self, text):
        """Keep what goes to the file itself."""
        self.main.append(json.loads(f"[{text}]"))

    def write_next(self, text):
        """Keep what gets a file of its own."""
        self.numbered.append(json.loads(f"[{text}]"))


@pytest.fixture
def written():
    return Written()


@pytest.fixture
def settings(written):
    return TraceSettings(path="/t/trace.json", writer=written)


def ask(settings, count, model="m"):
    """Let so many requests come; return how many of them are traced."""
    traces = [trace for _ in range(count) if (trace := settings.start(model)) is not None]
    for trace in traces:
        trace.mark("REQUEST_START", 5)
        trace.end()
    return len(traces)


def heads(items):
    return [item for item in items if "model_name" in item]


def test_PB73_the_defaults_are_tritons_and_texts():
    assert TraceSettings().shown() == {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "triton",
    }


def test_PB73_a_model_mirrors_the_global_settings_but_for_its_own(settings):
    settings.update({"trace_rate": "7", "trace_count": "3"})
    settings.update({"trace_rate": "2"}, "m")
    settings.update({"log_frequency": "5"})
    assert settings.shown()["trace_rate"] == "7"
    shown = settings.shown("m")
    assert (shown["trace_rate"], shown["trace_count"], shown["log_frequency"]) == ("2", "3", "5")
    assert settings.shown("other") == settings.shown()


def test_PB73_null_clears_to_the_global_value_and_that_to_the_first(settings):
    settings.update({"trace_rate": "7"})
    settings.update({"trace_rate": "2", "trace_count": "4"}, "m")
    settings.update({"trace_rate": None}, "m")
    shown = settings.shown("m")
    assert (shown["trace_rate"], shown["trace_count"]) == ("7", "4")
    settings.update({"trace_rate": None})
    assert settings.shown("m")["trace_rate"] == "1000"
    settings.update({"trace_count": None}, "m")
    assert settings.shown("m") == settings.shown()


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"trace_file": "/x"}, Code.UNSUPPORTED, "trace file location can not be updated"),
        ({"trace_file": None}, Code.UNSUPPORTED, "trace file location can not be updated"),
        ({"trace_level": ["TENSORS"]}, Code.UNSUPPORTED, "'TENSORS' is not offered"),
        ({"trace_level": ["TIMESTAMPS", "TENSORS"]}, Code.UNSUPPORTED, "'TENSORS' is not offered"),
        ({"trace_mode": "opentelemetry"}, Code.UNSUPPORTED, "expected triton"),
        ({"trace_level": ["OFF", "TIMESTAMPS"]}, Code.INVALID_ARG, "Expect only one trace level"),
        ({"trace_level": ["MAX"]}, Code.INVALID_ARG, "got: MAX, expected OFF or TIMESTAMPS"),
        ({"trace_level": []}, Code.INVALID_ARG, "'trace_level' is empty"),
        ({"trace_level": "OFF"}, Code.INTERNAL, "Unable to parse 'trace_level'"),
        ({"trace_level": [1]}, Code.INTERNAL, "Unable to parse 'trace_level'"),
        ({"trace_rate": 5}, Code.INTERNAL, "Unable to parse 'trace_rate'"),
        ({"trace_rate": "x"}, Code.INVALID_ARG, "Unable to parse 'trace_rate', got: x"),
        ({"trace_rate": "٣"}, Code.INVALID_ARG, "Unable to parse 'trace_rate', got"),
        ({"trace_rate": "-1"}, Code.INVALID_ARG, "value is out of range [ 0, 4294967295 ]"),
        ({"trace_rate": "9" * 5000}, Code.INVALID_ARG, "value is out of range"),
        ({"trace_count": "-2"}, Code.INVALID_ARG, "Expecting value >= -1, got:-2"),
        ({"trace_count": "2147483648"}, Code.INVALID_ARG, "value is out of range"),
        ({"log_frequency": "1.5"}, Code.INVALID_ARG, "Unable to parse 'log_frequency', got: 1.5"),
        (ON | {"trace_rate": "0"}, Code.INVALID_ARG, "sample rate must be non-zero"),
    ],
)
def test_PB73_what_cannot_be_is_refused_and_changes_nothing(settings, given, code, words):
    before = settings.shown()
    for model in ("", "m"):
        with pytest.raises(InferError) as caught:
            settings.update(given | {"log_frequency": given.get("log_frequency", "9")}, model)
        assert caught.value.code is code
        assert words in caught.value.detail
        assert settings.shown(model) == before


def test_PB73_without_a_file_nothing_can_be_traced():
    """The sentence names the option."""
    settings = TraceSettings()
    with pytest.raises(InferError, match=r"trace file name is not given .--trace-file") as caught:
        settings.update(ON)
    assert caught.value.code is Code.INVALID_ARG
    with pytest.raises(InferError, match="trace file name is not given"):
        TraceSettings(TraceSetting(is_on=True))


def test_a_global_change_that_a_models_own_values_cannot_bear_is_refused(settings):
    settings.update({"trace_rate": "0"}, "m")
    with pytest.raises(InferError, match="sample rate must be non-zero"):
        settings.update(ON)
    assert settings.shown()["trace_level"] == ["OFF"]


def test_PB73_every_rate_th_request_is_traced_until_the_count_is_reached(settings, written):
    settings.update(ON | {"trace_rate": "3", "trace_count": "2"})
    assert ask(settings, 5) == 1
    assert settings.shown()["trace_count"] == "1"
    assert ask(settings, 10) == 1
    assert settings.shown()["trace_count"] == "0"
    assert ask(settings, 10) == 0
    (items,) = written.main
    assert [head["id"] for head in heads(items)] == [1, 2]


def test_a_models_own_settings_sample_its_requests_alone(settings):
    settings.update(ON | {"trace_rate": "1"}, "m")
    assert ask(settings, 3, "m") == 3
    assert ask(settings, 3, "other") == 0
    settings.update({"trace_level": None}, "m")
    assert ask(settings, 3, "m") == 0


def test_PB73_a_trace_is_written_in_tritons_form(settings, written):
    settings.update(ON | {"trace_rate": "1", "log_frequency": "2"})
    for name in ("", "r1"):
        trace = settings.start("m")
        trace.mark("REQUEST_START", 5)
        trace.mark("REQUEST_END")
        trace.version, trace.request_id = "3" if name else "", name
        trace.end()
    (items,) = written.numbered
    assert items[:2] == [
        {"id": 1, "model_name": "m", "model_version": -1},
        {"id": 1, "timestamps": [{"name": "REQUEST_START", "ns": 5}]},
    ]
    assert items[3] == {"id": 2, "model_name": "m", "model_version": 3, "request_id": "r1"}
    assert items[5]["timestamps"][0]["ns"] > 5


def test_traces_gather_and_are_written_when_the_settings_change_or_the_gateway_ends(
    settings, written
):
    settings.update(ON | {"trace_rate": "1"})
    late = settings.start("m")
    assert ask(settings, 2) == 2
    assert written.main == []
    settings.update({"trace_rate": "2"})
    assert len(heads(written.main[0])) == 2
    late.end()  # one that began under settings that are gone
    assert len(written.main) == 2
    assert ask(settings, 4) == 2
    settings.close()
    assert len(heads(written.main[2])) == 2


def test_what_gathers_is_bounded(settings, written):
    """Triton keeps all until its end where log_frequency is 0."""
    settings.update(ON | {"trace_rate": "1"})
    ask(settings, 2 * MAX_GATHERED + 1)
    assert [len(heads(items)) for items in written.main] == [MAX_GATHERED] * 2


def test_a_request_in_a_block_is_traced_from_its_begin_to_its_end(settings, written):
    """Its end is missing where it failed; what is not traced may be told its version all the same."""
    with settings.request("m", "a") as trace:
        trace.version = "3"
    settings.update(ON | {"trace_rate": "1"})
    with settings.request("m", "b") as trace:
        trace.version = "4"
    with pytest.raises(ValueError, match="broken"), settings.request("m", "c"):
        raise ValueError("broken")
    settings.close()
    (items,) = written.main
    assert [(head["request_id"], head["model_version"]) for head in heads(items)] == [
        ("b", 4),
        ("c", -1),
    ]
    names = [item["timestamps"][0]["name"] for item in items if "timestamps" in item]
    assert names == ["REQUEST_START", "REQUEST_END", "REQUEST_START"]
