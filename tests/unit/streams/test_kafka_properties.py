"""Kafka's property names in, aiokafka's arguments out; what cannot be done is refused with a reason."""

import ssl

import pytest
from headrace.schemas.errors import ConfigError
from headrace.streams.kafka_names import (
    CLIENT,
    FETCH,
    GROUP,
    IGNORED,
    PRODUCER,
    REFUSED,
    SECURITY,
)
from headrace.streams.kafka_properties import from_environment, read_properties, translate

B = {"bootstrap.servers": "a:9092"}


def test_the_properties_format_is_java_s():
    """Comments, three separators, continued lines, escapes, empty values."""
    text = (
        "# comment\n! comment\n\nbootstrap.servers=a:1,\\\n   b:2\nclient.id : me\n"
        "linger.ms 5\nssl.endpoint.identification.algorithm=\nsasl.password=p\\=w\\#\r\n"
    )
    assert read_properties(text) == {
        "bootstrap.servers": "a:1,b:2",
        "client.id": "me",
        "linger.ms": "5",
        "ssl.endpoint.identification.algorithm": "",
        "sasl.password": "p=w#",
    }
    with pytest.raises(ConfigError, match=r"f\.properties: line 2: expected name=value$"):
        read_properties("a=1\n=x", file="f.properties")


def test_escapes_are_java_s():
    r"""What Java writes for characters outside of Latin-1, and for line ends inside of a PEM text."""
    assert read_properties("a=w\\u00f6rd\\n\\tx\\\\u0041\\!") == {"a": "w\u00f6rd\n\tx\\u0041!"}


def test_environment_names_become_properties():
    """Upper case and underscores, under one prefix; nothing else is read."""
    environ = {
        "HEADRACE_KAFKA_BOOTSTRAP_SERVERS": "a:1",
        "HEADRACE_KAFKA_SSL_CA_LOCATION": "/ca",
        "HEADRACE_PREFIX": "x",
        "KAFKA_OPTS": "y",
    }
    assert from_environment(environ) == {"bootstrap.servers": "a:1", "ssl.ca.location": "/ca"}


def test_properties_reach_the_class_that_takes_them():
    """Kafka's own defaults stand where nothing is said."""
    settings = translate(
        {
            **B,
            "session.timeout.ms": "6000",
            "compression.type": "zstd",
            "max.partition.fetch.bytes": "5",
            "client.id": "me",
            "group.instance.id": "w1",
            "check.crcs": "false",
            "request.timeout.ms": "1500",
        }
    )
    assert settings.client["bootstrap_servers"] == ["a:9092"]
    assert settings.client["client_id"] == "me"
    assert settings.request_timeout_s == 1.5
    assert settings.group["session_timeout_ms"] == 6000
    assert settings.group["heartbeat_interval_ms"] == 3000
    assert settings.group["group_instance_id"] == "w1"
    assert (settings.fetch["max_partition_fetch_bytes"], settings.fetch["check_crcs"]) == (
        5,
        False,
    )
    assert settings.producer["compression_type"] == "zstd"
    assert settings.warnings == ()


def test_every_argument_is_one_that_aiokafka_takes():
    """A typo in a table would only show when a client is made."""
    import inspect

    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    consumer = inspect.signature(AIOKafkaConsumer.__init__).parameters
    producer = inspect.signature(AIOKafkaProducer.__init__).parameters
    for table in (CLIENT, FETCH, GROUP):
        assert {argument for argument, _, _ in table.values()} <= consumer.keys()
    for table in (CLIENT, PRODUCER):
        assert {argument for argument, _, _ in table.values()} <= producer.keys()


def test_no_property_is_in_two_tables():
    """Each has one fate."""
    tables = [CLIENT, FETCH, GROUP, PRODUCER, SECURITY, IGNORED, REFUSED]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))


def test_a_batch_is_never_larger_than_a_request():
    """A batch of many records is refused by the same bound as one record."""
    settings = translate({**B, "max.request.size": "1000"})
    assert settings.producer["max_batch_size"] == 1000


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({}, "bootstrap.servers: name at least one broker"),
        ({"bootstrap.servers": "a"}, "bootstrap.servers = a: expected host:port"),
        ({**B, "bootstrap.server": "a:1"}, "did you mean bootstrap.servers?"),
        ({**B, "fooo.bar": "1"}, "fooo.bar: is no Kafka property"),
        ({**B, "session.timeout.ms": "6s"}, "session.timeout.ms = 6s: expected a whole number"),
        ({**B, "linger.ms": "-1"}, "linger.ms = -1: expected a whole number"),
        ({**B, "check.crcs": "yes"}, "check.crcs = yes: expected true or false"),
        ({**B, "compression.type": "brotli"}, "expected one of none, gzip, snappy, lz4, zstd"),
        ({**B, "auto.offset.reset": "latest"}, "auto.offset.reset = latest: cannot be set"),
        ({**B, "acks": "1"}, "acks = 1: expected all"),
        ({**B, "group.id": "g"}, "group.id = g: cannot be set"),
        ({**B, "enable.auto.commit": "true"}, "commits only what is answered"),
        ({**B, "security.protocol": "TLS"}, "expected one of PLAINTEXT, SSL"),
        ({**B, "sasl.username": "u"}, "needs security.protocol = SASL_SSL"),
        (
            {**B, "ssl.truststore.location": "/ca.pem"},
            "ssl.truststore.location: needs security.protocol = SSL or SASL_SSL, which is PLAINTEXT",
        ),
        (
            {
                **B,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
                "ssl.ca.location": "/ca.pem",
            },
            "ssl.ca.location: needs security.protocol = SSL or SASL_SSL, which is SASL_PLAINTEXT",
        ),
        (
            {**B, "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "expected one of PLAIN",
        ),
        (
            {**B, "sasl.oauthbearer.client.credentials.client.secret": "hidden"},
            "client.secret = …: cannot be set: OAUTHBEARER is not supported",
        ),
        ({**B, "sasl.kerberos.kinit.cmd": "/k"}, "GSSAPI is not supported"),
        (
            {
                **B,
                "security.protocol": "SSL",
                "ssl.endpoint.identification.algorithm": "ldaps",
            },
            "identification.algorithm = ldaps: expected https, or nothing",
        ),
        (
            {**B, "security.protocol": "SSL", "ssl.keystore.key": "k"},
            "ssl.keystore.certificate.chain: expected both",
        ),
        (
            {**B, "security.protocol": "SSL", "ssl.truststore.certificates": "no PEM"},
            "ssl.truststore.certificates: expected PEM certificates",
        ),
        ({**B, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.jaas.config"),
        (
            {**B, "security.protocol": "SSL", "ssl.truststore.location": "/x/trust.jks"},
            "ssl.truststore.location = /x/trust.jks: Java key stores cannot be read; export it as PEM",
        ),
        (
            {
                **B,
                "security.protocol": "SSL",
                "ssl.keystore.location": "/x/k.pem",
                "ssl.keystore.type": "PKCS12",
            },
            "export it as PEM",
        ),
        ({**B, "security.protocol": "SSL", "ssl.ca.location": "/none"}, "ssl.ca.location = /none"),
        (
            {**B, "security.protocol": "SSL", "ssl.certificate.location": "/none"},
            "PEM files of certificate chain and key",
        ),
    ],
)
def test_bad_properties_are_refused_with_name_value_and_what_was_expected(properties, sentence):
    """One sentence each, at start."""
    with pytest.raises(ConfigError) as refused:
        translate(properties, file="client.properties")
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("client.properties: ")


def test_ignored_properties_are_warned_about_with_the_reason():
    """They change nothing that one could notice."""
    settings = translate({**B, "max.poll.records": "5", "key.deserializer": "x"})
    assert len(settings.warnings) == 2
    assert "max.poll.records is ignored: polls are as large" in settings.warnings[0]
    sasl = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    (warning,) = translate({**B, **sasl, "sasl.login.retry.backoff.ms": "5"}).warnings
    assert "sasl.login.retry.backoff.ms is ignored: user and password" in warning


def test_harmless_values_of_refused_properties_pass():
    """What says what we do anyway need not be removed."""
    translate({**B, "auto.offset.reset": "earliest"})
    translate({**B, "enable.auto.commit": "false", "group.protocol": "classic", "acks": "-1"})


@pytest.mark.parametrize("spelling", ["jaas", "single quotes", "plain"])
def test_user_and_password_come_from_jaas_or_in_plain(spelling):
    """Java's login module line, quotes in a password included, or librdkafka's names."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    words = {
        "jaas": {"sasl.jaas.config": f'{module} username="ann" password="a\\"b c";'},
        "single quotes": {"sasl.jaas.config": f"{module} username=ann password='a\"b c';"},
        "plain": {"sasl.username": "ann", "sasl.password": 'a"b c'},
    }[spelling]
    settings = translate(
        {**B, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", **words}
    )
    assert settings.client["sasl_mechanism"] == "SCRAM-SHA-512"
    assert settings.client["sasl_plain_username"] == "ann"
    assert settings.client["sasl_plain_password"] == 'a"b c'
    assert settings.principal == "User:ann"
    assert "b c" not in repr(settings)


def test_a_password_is_not_in_an_error():
    """The refusal of a property that holds a secret does not show it."""
    with pytest.raises(ConfigError) as refused:
        translate({**B, "sasl.jaas.config": 'x required username="u" password="secret";'})
    assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        read_properties('sasl.jaas.config=x required\n  ="secret";')
    assert "secret" not in str(refused.value)


def test_host_names_are_checked_unless_kafka_s_own_property_says_otherwise():
    """The empty algorithm is Kafka's way to turn it off; the certificate is still verified."""
    on = translate({**B, "security.protocol": "SSL"}).client["ssl_context"]
    off = translate(
        {**B, "security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}
    ).client["ssl_context"]
    assert (on.check_hostname, off.check_hostname) == (True, False)
    assert on.verify_mode == off.verify_mode == ssl.CERT_REQUIRED
