"""Settings: precedence of command line, environment and file; what is refused, and in which words."""

import pytest
from headrace.deploy.settings import Settings, load_settings, option_name, variable_name
from headrace.deploy.variables import kafka_variables, misspelt_variables
from headrace.schemas.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch):
    """No variable of the machine that runs the tests counts."""
    for field in Settings.model_fields:
        monkeypatch.delenv(variable_name(field), raising=False)


def refusal(given):
    with pytest.raises(ConfigError) as caught:
        load_settings(given)
    return str(caught.value)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path, monkeypatch):
    path = tmp_path / "headrace.toml"
    path.write_text("http-port = 1\nmetrics_port = 2\nworker-port = 3\n")
    monkeypatch.setenv("HEADRACE_HTTP_PORT", "10")
    monkeypatch.setenv("HEADRACE_METRICS_PORT", "20")
    settings = load_settings({"config": str(path), "http_port": "100"})
    assert (settings.http_port, settings.metrics_port, settings.worker_port) == (100, 20, 3)


def test_the_file_may_be_named_by_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "headrace.toml"
    path.write_text('model-repository = ["/a", "/b"]\nexit-on-error = false\n')
    monkeypatch.setenv("HEADRACE_CONFIG", str(path))
    settings = load_settings({})
    assert settings.model_repository == ("/a", "/b")
    assert not settings.exit_on_error


@pytest.mark.parametrize(
    "field", [name for name, field in Settings.model_fields.items() if field.default == ()]
)
def test_a_repeatable_option_is_split_in_the_environment(monkeypatch, field):
    """At commas, or at semicolons where a value itself has commas."""
    separator = ";" if "restricted" in field else ","
    monkeypatch.setenv(variable_name(field), f"/a{separator} /b{separator}")
    assert getattr(load_settings({}), field) == ("/a", "/b")


@pytest.mark.parametrize(
    "given",
    [
        {"status_interval_ms": "5000"},
        {"status_interval_ms": "1000", "status_timeout_ms": "2999"},
    ],
)
def test_a_heartbeat_that_comes_late_must_not_be_a_death(given):
    """Three intervals fit into the time-out, also where one of the two is the default."""
    found = refusal(given)
    assert "status-timeout-ms" in found or "STATUS_TIMEOUT_MS" in found
    assert "expected at least 3 times --status-interval-ms, " in found
    settings = load_settings({"status_interval_ms": "100", "status_timeout_ms": "300"})
    assert (settings.status_interval_ms, settings.status_timeout_ms) == (100, 300)


def test_triton_spells_booleans_as_values():
    assert load_settings({"exit_on_error": "false"}).exit_on_error is False
    assert load_settings({"strict_readiness": "1"}).strict_readiness is True


def test_an_unknown_key_is_refused_with_the_nearest_one(tmp_path):
    path = tmp_path / "headrace.toml"
    path.write_text("http-prot = 8000\n")
    assert refusal({"config": str(path)}) == (
        f"{path}: http-prot: there is no such setting, did you mean http-port?"
    )


def test_an_unknown_key_like_none_lists_what_there_is(tmp_path):
    path = tmp_path / "headrace.toml"
    path.write_text("zzz = 1\n")
    found = refusal({"config": str(path)})
    assert "expected one of " in found
    assert ", model-repository, " in found


@pytest.mark.parametrize("text", ["= 1", "http-port = ", "\xff"])
def test_a_file_that_is_no_toml_is_refused(tmp_path, text):
    path = tmp_path / "headrace.toml"
    path.write_bytes(text.encode("latin-1"))
    assert f"{path}: expected TOML" in refusal({"config": str(path)})


def test_a_missing_file_is_refused():
    assert refusal({"config": "/nowhere/x.toml"}) == (
        "--config = /nowhere/x.toml: the file cannot be read: No such file or directory"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"http_port": "http"}, "--http-port = http: expected a valid integer"),
        ({"http_port": "70000"}, "--http-port = 70000: expected less than or equal to 65535"),
        ({"exit_on_error": "maybe"}, "--exit-on-error = maybe: expected a valid boolean"),
        ({"log_level": "loud"}, "--log-level = loud: expected 'debug', 'info'"),
        ({"model_control_mode": "poll"}, "--model-control-mode = poll: expected none;"),
        ({"max_pending": "0"}, "--max-pending = 0: expected greater than or equal to 1"),
        ({"max_live_sequences": "0"}, "--max-live-sequences = 0: expected greater than or equal"),
        ({"snapshot_every": "-1"}, "--snapshot-every = -1: expected greater than or equal to 0"),
        ({"ended_ttl_secs": "nan"}, "--ended-ttl-secs = nan: expected greater than or equal"),
        (
            {"worker_advertised_url": "10.0.0.7:8003"},
            "--worker-advertised-url = 10.0.0.7:8003: expected the root of a URL, such as http://",
        ),
        (
            {"worker_advertised_url": "http://w/metrics"},
            "--worker-advertised-url = http://w/metrics: expected the root of a URL",
        ),
    ],
)
def test_a_bad_value_is_named_as_the_option_that_carried_it(given, words):
    assert words in refusal(given)


def test_a_url_may_end_in_a_slash():
    settings = load_settings({"worker_advertised_url": "https://w1.example:8443/"})
    assert settings.worker_advertised_url == "https://w1.example:8443"


def test_a_bad_value_is_named_as_the_variable_or_key_that_carried_it(tmp_path, monkeypatch):
    path = tmp_path / "headrace.toml"
    path.write_text('http-port = "x"\n')
    assert f"{path}: http-port = x: expected a valid integer" in refusal({"config": str(path)})
    monkeypatch.setenv("HEADRACE_HTTP_PORT", "y")
    assert "HEADRACE_HTTP_PORT = y: expected" in refusal({"config": str(path)})


def test_a_misspelt_variable_is_told_and_an_orchestrators_is_not(monkeypatch):
    monkeypatch.setenv("HEADRACE_HTTP_PROT", "1")
    monkeypatch.setenv("HEADRACE_PORT_8000_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("HEADRACE_SERVICE_HOST", "10.0.0.1")
    assert misspelt_variables() == [
        "HEADRACE_HTTP_PROT is no setting and is ignored; did you mean HEADRACE_HTTP_PORT?"
    ]


def test_kafka_properties_from_the_environment_leave_out_the_file_and_an_orchestrators_names(
    monkeypatch,
):
    monkeypatch.setenv("HEADRACE_KAFKA_CONFIG", "/etc/client.properties")
    monkeypatch.setenv("HEADRACE_KAFKA_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HEADRACE_KAFKA_PORT_9092_TCP", "tcp://10.0.0.1:9092")
    monkeypatch.setenv("HEADRACE_KAFKA_SECURITY_PROTOCOL", "SSL")
    assert kafka_variables() == {"HEADRACE_KAFKA_SECURITY_PROTOCOL": "SSL"}


def test_every_field_is_described_and_has_a_default():
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name
    assert option_name("http_port") == "--http-port"
