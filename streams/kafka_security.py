"""SASL and TLS by Kafka's own property names: user and password, certificates and keys as PEM.

Secrets come in here and go nowhere but to the client: no error, repr or log line shows one.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from headrace.schemas.errors import ConfigError
from headrace.streams.kafka_names import SECURITY, Value

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
JAVA_STORES = (".jks", ".p12", ".pfx")
# An option of a JAAS line: Java takes a value in either quotes, or one that is a plain word.
JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([\w$-]+))""")
PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s*([A-Za-z0-9/+=\s]+?)\s*-----END \1-----")
PEM_COLUMNS = 64
HOST_NAME = "ssl.endpoint.identification.algorithm"
"""Often set whatever the protocol is, and says nothing about it."""

CERTIFICATES = (
    "ssl.keystore.certificate.chain",
    "ssl.certificate.location",
    "ssl.keystore.location",
)


def security(properties: Mapping[str, str], file: str = "") -> dict[str, Value]:
    """Return aiokafka's arguments for ``security.protocol`` and what belongs to it.

    Raises:
        ConfigError: A value is missing, unknown or cannot be read; secrets are not in the sentence.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"expected one of {', '.join(PROTOCOLS)}",
            file=file,
            field="security.protocol",
            value=protocol,
        )
    arguments: dict[str, Value] = {"security_protocol": protocol}
    if protocol.startswith("SASL"):
        arguments |= _sasl(properties, file)
    elif stray := [n for n in properties if n.startswith("sasl.")]:
        raise ConfigError(
            f"needs security.protocol = SASL_SSL or SASL_PLAINTEXT, which is {protocol}",
            file=file,
            field=stray[0],
        )
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = tls_context(properties, file)
    elif meant := [
        n for n in properties if n in SECURITY and n.startswith("ssl.") and n != HOST_NAME
    ]:
        # Whoever names certificates means TLS: nothing of theirs goes out in the clear.
        raise ConfigError(
            f"needs security.protocol = SSL or SASL_SSL, which is {protocol}",
            file=file,
            field=meant[0],
        )
    return arguments


def principal_of(properties: Mapping[str, str], client: Mapping[str, Value]) -> str:
    """Return whom brokers take us for.

    Args:
        properties: Kafka's.
        client: What `security` made of them.
    """
    if "sasl_plain_username" in client:
        return f"User:{client['sasl_plain_username']}"
    if "ssl_context" in client and any(name in properties for name in CERTIFICATES):
        return (
            "the client certificate's principal"  # the broker makes its name, by rules of its own
        )
    return "User:ANONYMOUS"


def _sasl(properties: Mapping[str, str], file: str) -> dict[str, Value]:
    name = "sasl.mechanisms" if "sasl.mechanisms" in properties else "sasl.mechanism"
    mechanism = properties.get(name, "")
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"expected one of {', '.join(MECHANISMS)}", file=file, field=name, value=mechanism
        )
    found = {
        option: re.sub(r"\\(.)", r"\1", double or single) or word
        for option, double, single, word in JAAS_OPTION.findall(
            properties.get("sasl.jaas.config", "")
        )
    }
    user = properties.get("sasl.username", found.get("username"))
    password = properties.get("sasl.password", found.get("password"))
    if user is None or password is None:
        raise ConfigError(
            'expected …LoginModule required username="…" password="…";'
            " (or sasl.username and sasl.password)",
            file=file,
            field="sasl.jaas.config",
        )
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def tls_context(properties: Mapping[str, str], file: str = "") -> ssl.SSLContext:
    """Return what the ``ssl.…`` properties say of certificates and keys, which are PEM.

    Raises:
        ConfigError: A value is wrong, or a file cannot be read.
    """
    for store in ("truststore", "keystore"):
        name = f"ssl.{store}.location"
        path = properties.get(name, "")
        kind = properties.get(f"ssl.{store}.type", "PEM").upper()
        if path and (kind != "PEM" or path.endswith(JAVA_STORES)):
            _refuse_java_store(name, path, file)
    context = _trusting(properties, file)
    # Kafka's own way to say that the host name is not to be checked is the empty algorithm.
    algorithm = properties.get(HOST_NAME, "https")
    if algorithm.lower() not in ("https", "", "none"):
        raise ConfigError(
            "expected https, or nothing where the host's name is not to be checked",
            file=file,
            field=HOST_NAME,
            value=algorithm,
        )
    context.check_hostname = algorithm.lower() == "https"
    _present_certificate(context, properties, file)
    return context


def _refuse_java_store(name: str, path: str, file: str) -> NoReturn:
    store = name.split(".")[1]
    pem = Path(path).with_suffix(".pem")
    if store == "truststore":
        how = f"keytool -list -rfc -keystore {path} > {pem}"
    elif path.endswith(".jks"):
        twelve = Path(path).with_suffix(".p12")
        how = (
            f"keytool -importkeystore -srckeystore {path} -destkeystore {twelve} -deststoretype PKCS12"
            f" && openssl pkcs12 -in {twelve} -out {pem}"
        )
    else:
        how = f"openssl pkcs12 -in {path} -out {pem}"
    raise ConfigError(
        f"Java key stores cannot be read; export it as PEM ({how}), name that file and set"
        f" ssl.{store}.type=PEM",
        file=file,
        field=name,
        value=path,
    )


def _trusting(properties: Mapping[str, str], file: str) -> ssl.SSLContext:
    name = next(
        (n for n in ("ssl.ca.location", "ssl.truststore.location") if n in properties), None
    )
    try:
        if name is not None:
            return ssl.create_default_context(cafile=properties[name])
        text = properties.get("ssl.truststore.certificates")
        return ssl.create_default_context(cadata=None if text is None else _wrapped(text))
    except (OSError, ValueError) as exc:
        if name is None:
            raise ConfigError(
                f"expected PEM certificates ({exc})",
                file=file,
                field="ssl.truststore.certificates",
            ) from exc
        raise ConfigError(
            f"expected a file of PEM certificates ({exc})",
            file=file,
            field=name,
            value=properties[name],
        ) from exc


def _present_certificate(
    context: ssl.SSLContext, properties: Mapping[str, str], file: str
) -> None:
    password = properties.get("ssl.key.password", properties.get("ssl.keystore.password")) or ""
    key = properties.get("ssl.keystore.key")
    chain = properties.get("ssl.keystore.certificate.chain")
    if key is not None or chain is not None:
        if not key or not chain:
            raise ConfigError(
                "expected both ssl.keystore.key and ssl.keystore.certificate.chain",
                file=file,
                field="ssl.keystore.key" if not key else "ssl.keystore.certificate.chain",
            )
        try:
            _load_text(context, f"{_wrapped(key)}\n{_wrapped(chain)}\n", password)
        except (OSError, ValueError) as exc:
            raise ConfigError(
                f"expected a PEM key and its PEM certificates ({exc})",
                file=file,
                field="ssl.keystore.key",
            ) from exc
        return
    name = next(
        (n for n in ("ssl.certificate.location", "ssl.keystore.location") if n in properties), None
    )
    if name is None:
        return
    try:
        context.load_cert_chain(
            Path(properties[name]), properties.get("ssl.key.location"), password=password
        )
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"expected PEM files of certificate chain and key ({exc})",
            file=file,
            field=name,
            value=properties[name],
        ) from exc


def _load_text(context: ssl.SSLContext, pem: str, password: str) -> None:
    """Load key and chain that are no file: OpenSSL's call takes files only, so there is one for the moment."""
    descriptor, path = tempfile.mkstemp()  # readable by us alone
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(pem)
        context.load_cert_chain(path, password=password)
    finally:
        Path(path).unlink()


def _wrapped(pem: str) -> str:
    """Break base64 into lines as OpenSSL wants them: in a properties file a value is one line."""

    def block(match: re.Match[str]) -> str:
        kind, text = match[1], "".join(match[2].split())
        lines = [text[at : at + PEM_COLUMNS] for at in range(0, len(text), PEM_COLUMNS)]
        return "\n".join([f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----"])

    return PEM_BLOCK.sub(block, pem)
