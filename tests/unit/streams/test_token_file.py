"""The form of a file of bearer tokens, and that a changed file holds without a restart."""

import hashlib
import logging
import os

import pytest
from headrace.schemas.errors import ConfigError
from headrace.streams.reloaded import LOOK_EVERY_S, Reloaded
from headrace.streams.token_file import read_tokens

HASHED = hashlib.sha256(b"gamma").hexdigest()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens"


def test_every_form_of_a_line_is_read(path):
    path.write_text(f"# who calls\n\nalpha\nbob: beta # his\ncarol:sha256:{HASHED}\n")
    found = read_tokens(path)
    assert len(found) == 3
    assert all(found.has(token) for token in ("alpha", "beta", "gamma"))
    assert not any(found.has(token) for token in ("", "bob", "bob: beta", HASHED, "# who calls"))


@pytest.mark.parametrize(
    "line",
    ["two words", "a:b:secretive", "sha256:abc", f"a:b:sha256:{HASHED}", "bob:", "sécretive"],
)
def test_a_line_of_another_form_is_named_by_number_and_not_repeated(path, line):
    path.write_text(f"alpha\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 2: expected a token") as caught:
        read_tokens(path)
    assert line not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"# none yet\n", b"\xff\xfe"])
def test_a_file_without_a_token_is_refused(path, content):
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        read_tokens(path)


def test_a_changed_file_holds_a_second_later_and_a_broken_one_changes_nothing(path, caplog):
    path.write_text("old")
    now = [0.0]
    latest = Reloaded((path,), lambda: read_tokens(path), what="tokens", clock=lambda: now[0])
    _replace(path, "new-one")
    assert latest().has("old")
    now[0] += LOOK_EVERY_S
    with caplog.at_level(logging.INFO):
        assert (latest().has("old"), latest().has("new-one")) == (False, True)
        _replace(path, "not a token")
        for _ in range(3):
            now[0] += LOOK_EVERY_S
            assert latest().has("new-one")
        path.unlink()
        now[0] += LOOK_EVERY_S
        assert latest().has("new-one")
        _replace(path, "newest")
        now[0] += LOOK_EVERY_S
        assert latest().has("newest")
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR", "ERROR", "INFO"]
    assert "new-one" not in caplog.text
    assert "not a token" not in caplog.text


def _replace(path, text):
    """Write as an editor or a mounted secret does: another file under the name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)  # noqa: PTH105  # what is tested
