"""SASL over TLS by Kafka's own option names, against a broker that insists on it; secrets stay where they are."""

import asyncio
import logging
import re
import subprocess
import time
from contextlib import asynccontextmanager

import pytest
from guarded_kit import STORE_PASSWORD, acls, guarded_broker
from headrace.schemas.errors import ConfigError, LogError
from headrace.schemas.record import TP, Out
from headrace.streams.kafka import KafkaLog
from headrace.streams.kafka_properties import read_properties
from headrace.streams.kafka_rights import Operation, Resource
from headrace.streams.log import EARLIEST, Span, TopicSpec

pytestmark = pytest.mark.kafka
PATIENCE_S = 60


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker behind SASL_SSL; ann comes by PLAIN, bob by SCRAM-SHA-512."""
    users = {"bob": "bob-Pa55"}
    with guarded_broker(tmp_path_factory.mktemp("guarded"), ann="ann-Pa55", users=users) as found:
        yield found


async def round_trip(properties, topic):
    """Write a record and read it back."""
    async with KafkaLog(properties) as log, log.publisher() as publisher:
        await publisher.publish([Out(topic, 0, None, b"v")])
        async with (
            asyncio.timeout(PATIENCE_S),
            log.reader({TP(topic, 0): Span(EARLIEST)}) as reader,
        ):
            while not (blocks := await reader.poll(1, 1.0)):
                pass
        return blocks[0].records[0].value


@asynccontextmanager
async def open_topic(guarded, unique, *users):
    """Make a topic that these users may read and write."""
    topic = unique("t")
    async with KafkaLog({"bootstrap.servers": guarded.plain}) as log, acls(guarded) as rights:
        await log.ensure([TopicSpec(topic, 1)])
        for user in users:
            for operation in (Operation.READ, Operation.WRITE):
                await rights.allow(user, operation, Resource.TOPIC, topic)
        yield topic


async def refusal(properties, **options):
    """Return the error of opening a log, which comes within a bound."""
    started = time.monotonic()
    with pytest.raises(LogError) as failed:
        async with KafkaLog(properties, **options):
            pass
    assert time.monotonic() - started < 10
    return failed.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_user_gets_in_by_a_file_of_kafka_s_own_properties(
    guarded, unique, mechanism, tmp_path
):
    """Written as a file for Kafka's command-line tools, read as a file; a record goes in and out."""
    user = "ann" if mechanism == "PLAIN" else "bob"
    file = tmp_path / "client.properties"
    properties = guarded.user(user, f"{user}-Pa55", mechanism)
    file.write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
    async with open_topic(guarded, unique, user) as topic:
        assert await round_trip(read_properties(file.read_text()), topic) == b"v"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_no_password_is_in_a_log_line_an_error_or_a_repr(guarded, caplog, mechanism):
    """Also where somebody asks aiokafka for everything that it has to tell."""
    user = "ann" if mechanism == "PLAIN" else "bob"
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "aiokafka"):
        async with KafkaLog(guarded.user(user, f"{user}-Pa55", mechanism)) as log:
            assert isinstance(await log.topics(), dict)
            shown = [repr(log), repr(log._settings), str(log._settings)]
        error = await refusal(guarded.user(user, "Wr0ng-Pa55", mechanism))
    assert guarded.sasl in error.detail
    assert "uthentication failed" in error.detail
    assert not error.retriable
    assert "ApiVersionRequest" in caplog.text  # it does tell requests
    for text in (caplog.text, *shown, error.detail, repr(error)):
        assert "Pa55" not in text


async def test_the_host_s_name_is_checked_unless_kafka_s_own_option_says_otherwise(guarded):
    """The certificate is for 127.0.0.1: by another name it is somebody else's."""
    by_name = guarded.user("bob", "bob-Pa55") | {
        "bootstrap.servers": guarded.sasl.replace("127.0.0.1", "localhost")
    }
    error = await refusal(by_name)
    assert "localhost" in error.detail
    assert "certificate" in error.detail
    unchecked = by_name | {"ssl.endpoint.identification.algorithm": ""}
    async with KafkaLog(unchecked) as log:
        assert isinstance(await log.topics(), dict)


def certificate(guarded, **more):
    return {
        "bootstrap.servers": guarded.mutual,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(guarded.trust),
        **more,
    }


def inline(pem, kind):
    """Return one PEM block as a properties file has it: a single line."""
    block = re.search(rf"-----BEGIN {kind}-----.*?-----END {kind}-----", pem, re.DOTALL)
    return " ".join(block[0].split("\n"))


async def test_a_client_s_certificate_lets_it_in_from_a_file_or_inline(guarded, unique):
    """PEM by its location, its key encrypted; and as text in the properties, as Kafka takes it, too."""
    pem = guarded.client.read_text()
    keys = {"ssl.keystore.type": "PEM", "ssl.key.password": STORE_PASSWORD}
    by_file = keys | {"ssl.keystore.location": str(guarded.client)}
    by_text = keys | {
        "ssl.keystore.key": inline(pem, "ENCRYPTED PRIVATE KEY"),
        "ssl.keystore.certificate.chain": inline(pem, "CERTIFICATE"),
        "ssl.truststore.certificates": inline(guarded.trust.read_text(), "CERTIFICATE"),
    }
    async with open_topic(guarded, unique, "CN=client") as topic:
        assert await round_trip(certificate(guarded, **by_file), topic) == b"v"
        properties = certificate(guarded, **by_text)
        del properties["ssl.truststore.location"]
        assert await round_trip(properties, topic) == b"v"


async def test_without_a_certificate_of_its_own_a_client_is_told_within_the_bound(guarded):
    """TLS 1.3 says so only after the handshake: it shows as a connection that ends."""
    error = await refusal(certificate(guarded, **{"request.timeout.ms": "2000"}))
    assert guarded.mutual in error.detail


def test_a_wrong_password_of_a_key_is_refused_at_start_without_showing_it(guarded):
    for name, value in (
        ("ssl.keystore.location", str(guarded.client)),
        ("ssl.keystore.key", inline(guarded.client.read_text(), "ENCRYPTED PRIVATE KEY")),
    ):
        more = {name: value, "ssl.key.password": "Wr0ng-Pa55"}
        if name == "ssl.keystore.key":
            more["ssl.keystore.certificate.chain"] = inline(
                guarded.client.read_text(), "CERTIFICATE"
            )
        with pytest.raises(ConfigError, match=name) as refused:
            KafkaLog(certificate(guarded, **more))
        assert "Pa55" not in str(refused.value)
        assert "PRIVATE KEY" not in str(refused.value)


async def test_java_s_key_stores_are_refused_with_the_commands_that_make_pem_of_them(
    guarded, unique
):
    """The commands are taken from the sentence and run; what they make lets the client in."""
    stores = {
        "ssl.truststore.location": guarded.folder / "broker.p12",
        "ssl.keystore.location": guarded.folder / "client.p12",
    }
    made = {"ssl.key.password": STORE_PASSWORD}
    for name, store in stores.items():
        properties = {
            "bootstrap.servers": guarded.mutual,
            "security.protocol": "SSL",
            name: str(store),
            name.replace("location", "type"): "PKCS12",
        }
        with pytest.raises(
            ConfigError, match=f"{name} = .*Java key stores cannot be read"
        ) as told:
            KafkaLog(properties)
        command = re.search(r"export it as PEM \((.*?)\), name", str(told.value))[1]
        pem = store.with_suffix(".pem")
        assert str(pem) in command
        # They ask for passwords; the file is another one, since the kit's own has that name.
        own = str(store.with_suffix(".made.pem"))
        command = command.replace(str(pem), own)
        word = f"-storepass {STORE_PASSWORD}" if "keytool" in command else ""
        phrase = f"-passin pass:{STORE_PASSWORD} -passout pass:{STORE_PASSWORD}"
        command = command.replace("-list", f"-list {word}").replace("-in ", f"{phrase} -in ")
        await asyncio.to_thread(
            subprocess.run, command, shell=True, check=True, capture_output=True
        )
        made |= {name: own, name.replace("location", "type"): "PEM"}
    async with open_topic(guarded, unique, "CN=client") as topic:
        properties = {"bootstrap.servers": guarded.mutual, "security.protocol": "SSL", **made}
        assert await round_trip(properties, topic) == b"v"
