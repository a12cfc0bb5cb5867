"""What a test does on a machine that lacks what it needs."""

import brokers
import pytest


def test_a_laptop_skips(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no keytool"):
        brokers.lacking("no keytool")


def test_continuous_integration_fails(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no keytool"):
        brokers.lacking("no keytool")
