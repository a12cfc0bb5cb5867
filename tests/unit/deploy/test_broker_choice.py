"""Which broker a process talks to, and with which properties, as its settings say."""

import socket

import pytest
from headrace.deploy.broker import (
    embedded_broker,
    embedded_properties,
    is_embedded,
    topology_of,
)
from headrace.deploy.settings import EMBEDDED_PORT, Settings, variable_name
from headrace.schemas.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch):
    """No variable of the machine that runs the tests counts."""
    for field in Settings.model_fields:
        monkeypatch.delenv(variable_name(field), raising=False)
    monkeypatch.delenv("HEADRACE_KAFKA_BOOTSTRAP_SERVERS", raising=False)


def test_without_a_kafka_the_embedded_broker_serves(monkeypatch):
    assert is_embedded(Settings())
    assert not is_embedded(Settings(bootstrap_servers="a:9092"))
    monkeypatch.setenv("HEADRACE_KAFKA_BOOTSTRAP_SERVERS", "a:9092")
    assert not is_embedded(Settings())


def test_a_file_of_properties_without_brokers_is_no_wish_for_the_embedded_one(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SSL\n")
    with pytest.raises(
        ConfigError, match=r"client\.properties: expected bootstrap\.servers in it"
    ):
        is_embedded(Settings(kafka_config=path))
    assert not is_embedded(Settings(kafka_config=path, bootstrap_servers="a:9092"))


def test_a_port_that_was_asked_for_is_not_exchanged_for_another():
    """Also where it is the default one."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", EMBEDDED_PORT))
            held.listen()
        except OSError:
            pass  # taken by somebody else: just what is wanted
        assert embedded_broker(Settings())._port == 0
        assert embedded_broker(Settings(broker_port=EMBEDDED_PORT))._port == EMBEDDED_PORT


def test_what_the_settings_say_of_clients_counts_for_the_embedded_broker_too(monkeypatch):
    monkeypatch.setenv("HEADRACE_KAFKA_MAX_REQUEST_SIZE", "5")
    settings = Settings(group_instance_id="w1")
    properties = embedded_properties(embedded_broker(settings), settings)
    assert properties["max.request.size"] == "5"
    assert properties["group.instance.id"] == "w1"
    assert properties["session.timeout.ms"] == "6000"


def test_the_state_topics_know_the_session_timeout(tmp_path):
    """Compaction leaves snapshots alone for longer than any zombie lives: ten sessions."""
    assert topology_of(Settings()).session_timeout_ms == 45_000
    properties = tmp_path / "client.properties"
    properties.write_text("bootstrap.servers=a:1\nsession.timeout.ms=6000\n")
    topology = topology_of(Settings(kafka_config=properties))
    state = topology.model_specs("m", stateful=True)[-1]
    assert state.settings["min.compaction.lag.ms"] == "60000"
