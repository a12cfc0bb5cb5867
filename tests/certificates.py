"""Certificates for tests of TLS, made by the openssl command; who lacks it skips, and fails in CI."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import brokers

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Pair(NamedTuple):
    """A certificate and its key, PEM."""

    cert: Path
    key: Path


def authority(folder: Path, name: str = "ca") -> Pair:
    """Make an authority."""
    return _made(folder, name)


def signed(folder: Path, name: str, by: Pair) -> Pair:
    """Make a certificate for 127.0.0.1 and localhost that an authority has signed."""
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    more = ("-CA", by.cert, "-CAkey", by.key, "-addext", names)
    return _made(folder, name, *more, "-addext", "basicConstraints=critical,CA:FALSE")


def _made(folder: Path, name: str, *more: object) -> Pair:
    if shutil.which("openssl") is None:
        brokers.lacking("no openssl")
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", *_NEW_KEY, "-subj", f"/CN={name}"]
    command += ["-keyout", str(pair.key), "-out", str(pair.cert), *map(str, more)]
    subprocess.run(command, check=True, capture_output=True)
    return pair
