"""Triton's logging settings and what they do to this process's log (SEMANTICS PB-74)."""

import io
import logging
import re
from contextlib import ExitStack

import pytest
from headrace.schemas.errors import Code, InferError
from headrace.streams.log_settings import LOGGERS, LogSetting, LogSettings


@pytest.fixture
def log():
    """A handler at the root that writes to memory."""
    handler = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def made(log):
    """Make settings for that handler; the log is left as it was."""
    levels = [logging.getLogger(name).level for name in LOGGERS]
    with ExitStack() as stack:

        def make(*setting):
            settings = LogSettings(*setting, handlers=[log])
            stack.callback(settings.close)
            return settings

        yield make
    assert [logging.getLogger(name).level for name in LOGGERS] == levels
    assert (log.filters, log.formatter) == ([], None)


def lines(handler):
    """Say something at each level, from ours and from a library; return what was written of it."""
    handler.stream.seek(0)
    handler.stream.truncate()
    for name in ("headrace.streams.x", "library"):
        for level in ("debug", "info", "warning", "error"):
            getattr(logging.getLogger(name), level)("%s %s", name[:3], level)
    return [line.split(": ")[-1] for line in handler.stream.getvalue().splitlines()]


def test_PB74_all_six_are_shown(made):
    assert made().shown() == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({}, ["info", "warning", "error"]),
        ({"log_info": False}, ["warning", "error"]),
        ({"log_warning": False}, ["info", "error"]),
        ({"log_error": False, "log_info": False}, ["warning"]),
        ({"log_info": False, "log_warning": False, "log_error": False}, []),
        ({"log_info": None, "colour": "blue"}, ["info", "warning", "error"]),
    ],
)
def test_PB74_each_severity_is_on_or_off_by_itself(log, made, given, written):
    """Unknown names and nulls are ignored."""
    settings = made()
    settings.update(given)
    found = lines(log)
    assert [line for line in found if line.startswith("hea")] == [f"hea {w}" for w in written]
    assert [line for line in found if line.startswith("lib")] == [f"lib {w}" for w in written]


@pytest.mark.parametrize(("level", "debugging"), [(0, set()), (1, {"hea"}), (2, {"hea", "lib"})])
def test_PB74_the_verbose_level_lets_through_what_is_said_for_debugging(
    log, made, level, debugging
):
    settings = made()
    settings.update({"log_verbose_level": 9})
    settings.update({"log_verbose_level": level, "log_info": False})
    found = lines(log)
    assert {line[:3] for line in found if "debug" in line} == debugging
    assert not [line for line in found if "info" in line]


def test_PB74_the_format_changes_how_times_are_written(log, made):
    settings = made()
    settings.update({"log_format": "ISO8601"})
    lines(log)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO headrace", log.stream.getvalue())
    settings.update({"log_format": "default"})
    lines(log)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ INFO headrace", log.stream.getvalue())


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"log_file": "/x"}, Code.UNSUPPORTED, "log file location can not be updated"),
        ({"log_format": "json"}, Code.UNAVAILABLE, "invalid argument for --log_format, got: json"),
        ({"log_format": 1}, Code.INTERNAL, "Unable to parse 'log_format'"),
        ({"log_info": "true"}, Code.INTERNAL, "Unable to parse 'log_info'"),
        ({"log_error": 1}, Code.INTERNAL, "Unable to parse 'log_error'"),
        ({"log_verbose_level": True}, Code.INTERNAL, "Unable to parse 'log_verbose_level'"),
        ({"log_verbose_level": -1}, Code.INTERNAL, "expected an unsigned integer"),
        ({"log_verbose_level": 2**31}, Code.INTERNAL, "expected an unsigned integer"),
    ],
)
def test_PB74_what_cannot_be_is_refused_and_changes_nothing(given, code, words):
    settings = LogSettings()
    before = settings.shown()
    with pytest.raises(InferError) as caught:
        settings.update({"log_warning": False} | given)
    assert caught.value.code is code
    assert words in caught.value.detail
    assert settings.shown() == before


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_the_log_level_of_the_process_is_where_it_begins(log, made, level, written):
    made(LogSetting.from_level(level))
    assert lines(log) == [f"{who} {what}" for who in ("hea", "lib") for what in written]
