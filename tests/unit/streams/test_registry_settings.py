"""A Schema Registry's options by Confluent's names, and what is wrong with them."""

import pytest
from headrace.schemas.errors import ConfigError
from headrace.streams.registry_settings import registry_properties, registry_settings

URL = {"url": "http://registry:8081"}


def test_a_java_clients_properties_are_parted():
    properties = {
        "bootstrap.servers": "a:9092",
        "ssl.truststore.location": "kafka.pem",
        "schema.registry.url": "http://registry:8081",
        "schema.registry.ssl.truststore.location": "registry.pem",
        "basic.auth.credentials.source": "USER_INFO",
        "basic.auth.user.info": "other:x",
        "schema.registry.basic.auth.user.info": "alice:secret",
    }
    registry, kafka = registry_properties(properties)
    assert kafka == {"bootstrap.servers": "a:9092", "ssl.truststore.location": "kafka.pem"}
    assert registry == {
        "url": "http://registry:8081",
        "ssl.truststore.location": "registry.pem",
        "basic.auth.credentials.source": "USER_INFO",
        "basic.auth.user.info": "alice:secret",
    }


@pytest.mark.parametrize(
    ("more", "user"),
    [
        ({}, ("", "")),
        ({"basic.auth.user.info": "alice:a:b"}, ("alice", "a:b")),
        ({"url": "http://al%40ice:s%3Ab@registry:8081"}, ("al@ice", "s:b")),
        ({"basic.auth.credentials.source": "SASL_INHERIT"}, ("bob", "kafka")),
        ({"bearer.auth.token": "abc"}, ("", "")),
    ],
)
def test_who_we_are(more, user):
    found = registry_settings({**URL, **more}, sasl=("bob", "kafka"))
    assert (found.user, found.password) == user
    assert found.token == more.get("bearer.auth.token", "")
    assert found.urls == ("http://registry:8081",)
    assert not any(secret in repr(found) for secret in ("a:b", "s:b", "kafka", "abc"))


def test_urls_and_bounds():
    bounds = {"max.retries": "9", "retries.wait.ms": "50", "http.read.timeout.ms": "1500"}
    more = {"cache.capacity": "10", "auto.register.schemas": "False", **bounds}
    found = registry_settings({"url": " http://a:1/ , https://[::1]:2/apis/ccompat/v7 ", **more})
    assert found.urls == ("http://a:1", "https://[::1]:2/apis/ccompat/v7")
    assert (found.max_retries, found.wait_s, found.timeout_s) == (9, 0.05, 1.5)
    assert (found.max_schemas, found.registers) == (10, False)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"url": ""}, r"schema\.registry\.url: name the Schema Registry as http://host:port"),
        ({"url": "registry:8081"}, "expected http://host:port or https://host:port"),
        ({"url": "http://[broken"}, "expected http://host:port"),
        (
            {"basic.auth.userinfo": "a:b"},
            r"did you mean schema\.registry\.basic\.auth\.user\.info\?",
        ),
        ({"basic.auth.user.info": "alice"}, "expected user:password"),
        ({"basic.auth.credentials.source": "USER_INFO"}, "expected user:password"),
        ({"basic.auth.credentials.source": "SASL_INHERIT"}, "there are none"),
        ({"basic.auth.credentials.source": "FILE"}, "expected USER_INFO, URL or SASL_INHERIT"),
        ({"bearer.auth.credentials.source": "OAUTHBEARER"}, "expected STATIC_TOKEN"),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, "expected a token"),
        ({"bearer.auth.token": "t", "basic.auth.user.info": "a:b"}, "either basic"),
        ({"max.retries": "-1"}, "max.retries = -1: expected a whole number"),
        ({"auto.register.schemas": "no"}, "expected true or false"),
        ({"ssl.truststore.location": "/no/such.pem"}, "expected a file of PEM certificates"),
    ],
)
def test_what_is_wrong_is_named_without_its_secret(more, why):
    with pytest.raises(ConfigError, match=why) as error:
        registry_settings({**URL, **more}, file="client.properties")
    assert "a:b" not in str(error.value)
    assert str(error.value).startswith("client.properties: schema.registry.")
