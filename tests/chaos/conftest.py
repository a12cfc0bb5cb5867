"""Three brokers for the chaos tests, started once, and ended with the last of these tests."""

import contextlib

import brokers
import pytest
from chaos.play import three_brokers

_started = contextlib.ExitStack()


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """Three brokers, and the small file system of one, or why it has none."""
    try:
        brokers.jars()
    except brokers.Unavailable as missing:
        brokers.lacking(f"no Apache Kafka: {missing}")
    return _started.enter_context(three_brokers(tmp_path_factory.mktemp("chaos")))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """End the brokers behind the last test: idle ones would slow down all others."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _started.close()
