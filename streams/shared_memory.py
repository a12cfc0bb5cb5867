"""System shared memory that clients registered: tensors that travel beside the protocol (SEMANTICS PB-72).

The client and this process must see the same ``/dev/shm``. Only objects directly in it are opened, by POSIX' rules for
their names, and no link is followed. Regions are read and written by position and never mapped: an object that its
owner cuts short while it is used would end a process that has mapped it. A read copies what is really there, so no size
that somebody claims is ever allocated. All of it may be called from any thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from headrace.schemas.errors import (
    BackendError,
    Code,
    InferError,
    InvalidRequest,
    NotFound,
    Reason,
    Unsupported,
)
from headrace.schemas.infer import InferResponse, RequestedOutput
from headrace.schemas.shared_span import SharedSpan, shared_span
from headrace.schemas.tensor import Buffer

SHM_FOLDER = "/dev/shm"  # noqa: S108  # where shm_open(3) keeps its objects on Linux

DEFAULT_MAX_REGIONS = 256
"""Regions that may be registered at once; each holds an open file."""

MAX_NAME_BYTES = 255
"""Of a file name, and so of a key without its slash."""

RESERVED_PREFIX = "triton_python_backend_shm_region_"
"""Keys that belong to the python backend's own regions."""

DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)

NO_GPU = (
    "CUDA shared memory is not offered: this gateway uses no GPU, expected system shared memory"
)


@dataclass(slots=True)
class _Region:
    name: str
    key: str
    offset: int
    byte_size: int
    file: int
    users: int = 0
    is_gone: bool = False


class SharedMemory:
    """The regions that are registered at one gateway; HTTP and gRPC ask the same object.

    Attributes:
        is_allowed: Clients may register regions.
    """

    def __init__(
        self, *, is_allowed: bool = False, max_regions: int = DEFAULT_MAX_REGIONS
    ) -> None:
        """Begin without regions."""
        self.is_allowed = is_allowed
        self._max_regions = max_regions
        self._regions: dict[str, _Region] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        """Return how many regions are registered."""
        return len(self._regions)

    @property
    def largest_bytes(self) -> int:
        """Size of the largest region; 0 where there is none."""
        return max((region.byte_size for region in list(self._regions.values())), default=0)

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register a part of a shared memory object under a name.

        Args:
            name: Of the region, as requests will say it.
            key: The object's, with or without a slash in front.
            offset: First byte of the region in it.
            byte_size: Of the region; offset and size are 0 or more.

        Raises:
            Unsupported: Clients may not, or this system has no ``/dev/shm``.
            InvalidRequest: The name is taken, the key is none, or the object has not so many bytes.
        """
        self._check_allowed()
        if not name:
            raise InvalidRequest(
                "'region name' is necessary to register system shared memory region"
            )
        file_name = _checked_key(name, key)
        with self._lock:
            if name in self._regions:
                raise InvalidRequest(
                    f"shared memory region '{name}' already in manager", code=Code.ALREADY_EXISTS
                )
            if len(self._regions) >= self._max_regions:
                raise InvalidRequest(
                    f"shared memory region '{name}' cannot be registered: {self._max_regions} are, "
                    "expected that others are unregistered first (--max-shm-regions)"
                )
            file = _open(key, file_name)
            try:
                _check_size(name, file, offset, byte_size)
            except InferError:
                os.close(file)
                raise
            self._regions[name] = _Region(name, key, offset, byte_size, file)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or with ``""`` all; one that is not known is no error.

        A region that a request still uses is closed when the request has ended.

        Raises:
            Unsupported: Clients may not.
        """
        self._check_allowed()
        self.clear(name)

    def clear(self, name: str = "") -> None:
        """Forget a region, or all, whether clients may or not: also at the end of the process."""
        with self._lock:
            for gone in [name] if name else list(self._regions):
                region = self._regions.pop(gone, None)
                if region is not None:
                    region.is_gone = True
                    _close_unused(region)

    def status(self, name: str = "") -> list[dict[str, str | int]]:
        """Return the regions, or the one of this name, as V2 JSON has them.

        Raises:
            NotFound: There is no such region.
        """
        with self._lock:
            if name and name not in self._regions:
                raise NotFound(
                    f"Unable to find system shared memory region: '{name}'",
                    reason=Reason.INVALID_REQUEST,
                )
            return [
                {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
                for r in self._regions.values()
                if name in ("", r.name)
            ]

    def reader(self, max_bytes: int) -> SharedReader:
        """Return what reads the inputs of one request, ``max_bytes`` of them together at most."""
        return SharedReader(self, max_bytes)

    def read(self, span: SharedSpan) -> bytes:
        """Return a copy of a part of a region.

        Raises:
            NotFound: There is no such region.
            InvalidRequest: It has not so many bytes, or its object has not any more.
        """
        with self._used(span) as region:
            found = os.pread(region.file, span.byte_size, region.offset + span.offset)
        if len(found) < span.byte_size:
            raise _cut_short(span)
        return found

    @contextmanager
    def targets(self, outputs: Iterable[RequestedOutput]) -> Iterator[SharedTargets]:
        """Hold the regions that a request's outputs go to, from before it is asked until they are written.

        Raises:
            Unsupported: An output names a region, and clients may not.
            NotFound: There is no such region.
            InvalidRequest: It has not so many bytes, or the output is also wanted in another form.
        """
        held: dict[str, tuple[SharedSpan, _Region]] = {}
        try:
            for output in outputs:
                span = _target_span(output)
                if span is not None:
                    self._check_allowed()
                    if (before := held.get(output.name)) is not None:
                        self._let_go(before[1])
                    held[output.name] = (span, self._take(span))
            yield SharedTargets(held)
        finally:
            for _, region in held.values():
                self._let_go(region)

    def _check_allowed(self) -> None:
        if not self.is_allowed:
            raise Unsupported(DISABLED)

    @contextmanager
    def _used(self, span: SharedSpan) -> Iterator[_Region]:
        self._check_allowed()
        region = self._take(span)
        try:
            yield region
        finally:
            self._let_go(region)

    def _take(self, span: SharedSpan) -> _Region:
        with self._lock:
            region = self._regions.get(span.region)
            if region is None:
                raise NotFound(
                    f"Unable to find shared memory region: '{span.region}'",
                    reason=Reason.INVALID_REQUEST,
                )
            if span.offset >= region.byte_size:
                raise InvalidRequest(
                    f"Invalid offset for shared memory region: '{span.region}': {span.offset}, "
                    f"expected less than its {region.byte_size} bytes"
                )
            if span.offset + span.byte_size > region.byte_size:
                raise InvalidRequest(
                    f"Invalid offset + byte size for shared memory region: '{span.region}': "
                    f"{span.offset} + {span.byte_size}, expected at most its {region.byte_size} bytes"
                )
            region.users += 1
            return region

    def _let_go(self, region: _Region) -> None:
        with self._lock:
            region.users -= 1
            _close_unused(region)


class SharedReader:
    """Reads the inputs of one request; see `headrace.schemas.shared_span.ReadShared`."""

    def __init__(self, memory: SharedMemory, max_bytes: int) -> None:
        """Keep what may be read: many inputs may name the same region, so their sum is bounded."""
        self._memory = memory
        self._max_bytes = max_bytes
        self._left = max_bytes

    def __call__(self, tensor: str, span: SharedSpan) -> Buffer:
        """Return the bytes of an input.

        Raises:
            InferError: As `SharedMemory.read`; or with this one the request's inputs are too large.
        """
        if span.byte_size > self._left:
            raise InvalidRequest(
                f"input '{tensor}' has {span.byte_size} bytes in shared memory, more than are left of the "
                f"{self._max_bytes} bytes of a request's inputs. Use --http-max-input-size to increase the limit."
            )
        self._left -= span.byte_size
        return self._memory.read(span)


class SharedTargets:
    """Where some of a call's outputs go; made by `SharedMemory.targets`."""

    def __init__(self, held: Mapping[str, tuple[SharedSpan, _Region]]) -> None:
        """Keep output name → place."""
        self._held = held

    @property
    def names(self) -> Set[str]:
        """Names of the outputs that go to shared memory, and so not into the answer."""
        return self._held.keys()

    def write(self, response: InferResponse) -> None:
        """Write the outputs to their places.

        Raises:
            BackendError: An output is larger than its place; no part of it is written.
            InvalidRequest: The object has been cut short.
        """
        for tensor in response.outputs if self._held else ():
            place = self._held.get(tensor.name)
            if place is None:
                continue
            span, region = place
            size = len(tensor.data)
            if size > span.byte_size:
                raise BackendError(
                    f"shared memory size specified with the request for output '{tensor.name}' "
                    f"({span.byte_size} bytes) should be at least {size} bytes to hold the results"
                )
            begin = region.offset + span.offset
            # Writing behind the object's end would make it longer, and memory of it.
            if os.fstat(region.file).st_size < begin + size:
                raise _cut_short(span)
            _write_all(region.file, tensor.data, begin)


NO_TARGETS = SharedTargets({})
"""Of a call whose outputs all go into its answer."""


def _write_all(file: int, data: Buffer, begin: int) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(file, view, begin)
        view, begin = view[written:], begin + written


def _target_span(output: RequestedOutput) -> SharedSpan | None:
    span = shared_span(output.name, output.parameters)
    if span is None:
        return None
    for other in ("classification", "binary_data"):
        if output.parameters.get(other):
            raise InvalidRequest(f"Output can't set both 'shared_memory_region' and '{other}'")
    return span


def _checked_key(name: str, key: str) -> str:
    """Return the file's name of an object's key."""
    file_name = key.lstrip("/")
    if (
        not file_name
        or "/" in file_name
        or "\0" in file_name
        or file_name in (".", "..")
        or len(file_name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES
    ):
        raise InvalidRequest(
            f"cannot register shared memory region '{name}' - invalid shm key '{key:.300}': expected a name "
            f"of at most {MAX_NAME_BYTES} bytes, without a slash but in front"
        )
    if file_name.startswith(RESERVED_PREFIX):
        raise InvalidRequest(
            f"cannot register shared memory region '{name}' with key '{key}' as the key contains the "
            f"reserved prefix '{RESERVED_PREFIX}'"
        )
    return file_name


def _open(key: str, file_name: str) -> int:
    """Open an object; a link in its place is not followed, and a pipe not waited for."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(f"{SHM_FOLDER}/{file_name}", flags)
    except (OSError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or "its name is no text"
        raise InvalidRequest(f"Unable to open shared memory region: '{key}': {why}") from error


def _check_size(name: str, file: int, offset: int, byte_size: int) -> None:
    found = os.fstat(file)
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "it is no shared memory object"
    elif byte_size < 1:
        why = f"byte_size is {byte_size}, expected at least 1"
    elif offset + byte_size > found.st_size:
        why = f"the object has {found.st_size} bytes, expected at least {offset} + {byte_size}"
    if why:
        raise InvalidRequest(
            f"failed to register shared memory region '{name}': invalid args: {why}"
        )


def _cut_short(span: SharedSpan) -> InvalidRequest:
    return InvalidRequest(
        f"shared memory region '{span.region}' is shorter than it was registered, expected "
        f"{span.byte_size} bytes at {span.offset}"
    )


def _close_unused(region: _Region) -> None:
    if region.is_gone and not region.users:
        os.close(region.file)
