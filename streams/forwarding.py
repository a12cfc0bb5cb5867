"""Headers that become request parameters (SEMANTICS PB-48), pure and for both protocols."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from headrace.schemas.errors import ConfigError, InvalidRequest
from headrace.schemas.infer import InferRequest, Parameter
from headrace.schemas.parameters import RESERVED_PREFIX

RESERVED = frozenset(
    (
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    )
)
"""Names that no forwarded header may have: they mean something as parameters."""


class Forwarding:
    """Turns headers whose names match a pattern into string parameters."""

    def __init__(self, pattern: str, *, option: str, never: Collection[str] = ()) -> None:
        """Compile the pattern.

        Args:
            pattern: Regular expression; a match anywhere in a name counts, upper or lower case.
            option: The option that it came from.
            never: Lower-case names that are not forwarded whatever the pattern says: those that carry our secrets.

        Raises:
            ConfigError: It is no regular expression.
        """
        try:
            self._pattern = re.compile(pattern, re.IGNORECASE)
        except re.error as error:
            raise ConfigError(
                f"expected a regular expression: {error}", field=option, value=pattern
            ) from error
        self._never = frozenset(never)

    def apply(self, request: InferRequest, headers: Iterable[tuple[str, str]]) -> InferRequest:
        """Return a request with its call's headers among its parameters; a header goes before a parameter of its name.

        Args:
            request: As its body says.
            headers: Name and value of each, in order; the last of a name counts.

        Raises:
            InvalidRequest: A header that matches has a name that is reserved.
        """
        found: dict[str, Parameter] = {}
        for name, value in headers:
            lower = name.lower()
            if lower in self._never or not self._pattern.search(name):
                continue
            if lower in RESERVED or lower.startswith(RESERVED_PREFIX):
                raise InvalidRequest(
                    f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
                )
            # Bytes that are no UTF-8 come as surrogates, which no record could hold.
            found[name] = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return request._replace(parameters={**request.parameters, **found}) if found else request
