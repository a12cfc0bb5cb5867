"""Who may call what, for both protocols: API groups behind a header of their own, and bearer tokens (SEMANTICS PB-22).

Rules of this module: pure, without HTTP or gRPC in it; a server that restricts nothing has no `Access` at all, so that
a call costs nothing then. Values and tokens are compared in constant time and stand in no text, `repr` or log.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from headrace.schemas.errors import AccessDenied, ConfigError, Reason

GRPC_HEADER_PREFIX = "triton-grpc-protocol-"
"""What stands before a restricted header's name in gRPC's metadata."""

AUTHORIZATION = "authorization"
"""The header of a bearer token; lower case, as gRPC's metadata have it."""

Lookup: TypeAlias = Callable[[str], str | None]
"""Returns a header of a call by its lower-case name, None where it has none."""


class Group(StrEnum):
    """What may be restricted, by Triton's names. Its order is the one that error texts list."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a protocol words its restrictions.

    Attributes:
        option: The option that declares them, with its hyphens.
        noun: What it calls an API group's member: ``API`` or ``protocol``.
        prefix: What stands before the header's name in a call.
    """

    option: str
    noun: str
    prefix: str = ""


HTTP = Protocol("--http-restricted-api", "API")
GRPC = Protocol("--grpc-restricted-protocol", "protocol", GRPC_HEADER_PREFIX)


@dataclass(frozen=True, slots=True)
class Restriction:
    """A header that a group of APIs asks for.

    Attributes:
        header: Its name as the caller writes it.
        value: What it must be, bytes.
        noun: The protocol's word for what is restricted.
    """

    header: str
    value: bytes = field(repr=False)
    noun: str

    def check(self, header: Lookup) -> None:
        """Pass a call that has the header with the value.

        Raises:
            AccessDenied: It has not.
        """
        given = header(self.header.lower())
        if given is None or not hmac.compare_digest(_bytes(given), self.value):
            raise AccessDenied(
                f"This {self.noun} is restricted, expecting header '{self.header}'",
                reason=Reason.RESTRICTED,
            )


def read_restrictions(texts: Sequence[str], protocol: Protocol) -> dict[Group, Restriction]:
    """Read restrictions as Triton writes them: ``<group>,<group>:<header>=<value>``.

    Args:
        texts: One for each header; a group stands in at most one of them.
        protocol: Whose they are.

    Raises:
        ConfigError: A text has another form, or names a group that does not exist or has been named before. The
            value is not repeated.
    """
    found: dict[Group, Restriction] = {}
    for text in texts:
        names, _, rest = text.partition(":")
        header, _, value = rest.partition("=")
        if not (names and header and value):
            raise ConfigError(
                "expected <groups>:<header>=<value>, such as model-repository,trace:admin-key=secret",
                field=protocol.option,
                value=f"{names}:{header}=…" if value else f"{names[:40]}…",
            )
        restriction = Restriction(protocol.prefix + header, value.encode(), protocol.noun)
        for name in names.split(","):
            if name not in list(Group):
                raise ConfigError(
                    f"there is no such group, expected one of {', '.join(Group)}",
                    field=protocol.option,
                    value=name,
                )
            if Group(name) in found:
                raise ConfigError(
                    "the group is named twice, expected each in one restriction at most",
                    field=protocol.option,
                    value=name,
                )
            found[Group(name)] = restriction
    return found


class Tokens:
    """Bearer tokens, kept as SHA-256 digests only."""

    def __init__(self, digests: Collection[bytes]) -> None:
        """Keep digests of 32 bytes each."""
        self._digests = frozenset(digests)

    def __len__(self) -> int:
        """How many."""
        return len(self._digests)

    def __repr__(self) -> str:
        """Show their number."""
        return f"Tokens({len(self)})"

    def has(self, token: str) -> bool:
        """Whether it is one of them.

        A look-up of the digest may tell by its time how much of a known *digest* was guessed. Nobody can steer that
        without breaking SHA-256, so this is as good as a comparison with each, and takes no longer for many.
        """
        return hashlib.sha256(_bytes(token)).digest() in self._digests


class Access:
    """What calls need: a token where tokens are asked for, then the header of their group where it is restricted."""

    def __init__(
        self,
        restrictions: Mapping[Group, Restriction],
        tokens: Callable[[], Tokens] | None = None,
        *,
        free: Collection[Group] = (),
    ) -> None:
        """Keep the rules.

        Args:
            restrictions: Group → what it asks for.
            tokens: Returns the tokens that hold now; None asks for none.
            free: Groups that need no token.
        """
        self._restrictions = dict(restrictions)
        self._tokens = tokens
        self._free = frozenset(free)

    @property
    def secret_headers(self) -> frozenset[str]:
        """Lower-case names of the headers that carry a secret of ours: these are never forwarded."""
        named = {restriction.header.lower() for restriction in self._restrictions.values()}
        return frozenset(named | ({AUTHORIZATION} if self._tokens is not None else set()))

    def check(self, group: Group, header: Lookup) -> None:
        """Pass a call, or refuse it.

        Args:
            group: Of what is called.
            header: Looks up its headers.

        Raises:
            AccessDenied: UNAUTHENTICATED (HTTP 401) without a valid token, RESTRICTED (HTTP 403, gRPC UNAVAILABLE as
                Triton's) without the group's header.
        """
        if self._tokens is not None and group not in self._free:
            scheme, _, token = (header(AUTHORIZATION) or "").partition(" ")
            if scheme.lower() != "bearer" or not self._tokens().has(token.strip()):
                raise AccessDenied(
                    "a bearer token is needed, expected a known one in header 'Authorization'",
                    reason=Reason.UNAUTHENTICATED,
                )
        restriction = self._restrictions.get(group)
        if restriction is not None:
            restriction.check(header)


def _bytes(text: str) -> bytes:
    """Return a header's bytes as they came: those that are no UTF-8 are surrogates in its text."""
    return text.encode("utf-8", "surrogateescape")
