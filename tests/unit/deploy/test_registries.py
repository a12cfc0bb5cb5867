"""The clients of Schema Registries that mappings name, made of a process's settings."""

from pathlib import Path

import pytest
from headrace.deploy.mappings import registries_of
from headrace.deploy.settings import Settings
from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping_file import read_mapping

MAPPING = """
[source]
topic = "payments"
format = "avro"
framing = "confluent"
offset_reset = "latest"
[inputs.x]
field = "a"
[results]
format = "json"
"""
KAFKA = """
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="bob" password="hush";
"""


async def registry_of(folder: Path, properties: str, text: str = MAPPING):
    config = folder / "client.properties"
    config.write_text(properties)
    mapping = read_mapping(text, "fraud.toml", lambda _: b"")
    async with registries_of(Settings(kafka_config=config), [mapping]) as found:
        (registry,) = found.values()
        return registry.settings


async def test_kafkas_user_is_the_registrys_where_that_is_said(tmp_path):
    inherits = "schema.registry.url=http://a:1\nbasic.auth.credentials.source=SASL_INHERIT\n"
    found = await registry_of(tmp_path, KAFKA + inherits)
    assert (found.user, found.password, found.urls) == ("bob", "hush", ("http://a:1",))
    assert "hush" not in repr(found)
    found = await registry_of(tmp_path, f"{KAFKA}schema.registry.url=http://a:1\n")
    assert found.user == ""
    with pytest.raises(ConfigError, match="takes user and password of Kafka's own"):
        await registry_of(tmp_path, inherits)


async def test_the_mappings_own_url_goes_before_that_of_the_properties(tmp_path):
    text = MAPPING.replace("framing", 'registry = "http://b:2"\nframing')
    found = await registry_of(tmp_path, "schema.registry.url=http://a:1\n", text)
    assert found.urls == ("http://b:2",)
    with pytest.raises(ConfigError, match="framing confluent needs a Schema Registry"):
        await registry_of(tmp_path, "")
