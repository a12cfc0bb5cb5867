"""The parameters of our own by which a configuration says what Triton's schema has no field for.

``batch_axis.<tensor>``: place of the batch axis in the model's own tensor where it is not the first, a non-negative
integer. Silero VAD's ``state`` is ``[2, N, 128]``: its dims are ``[2, 128]``, and ``batch_axis.state`` is ``1``. The
tensor may be an input, an output, a control, or the input or output of a state. Records are not changed by it: there
the batch axis is always the first. Only with ``max_batch_size`` above 0, and at most the number of the tensor's dims
(of its ``reshape``, where it has one).

``constant.<tensor>``: value of a model input that has no batch axis and is the same in every execution, such as
Silero VAD's scalar ``sr``: ``constant.sr`` is ``16000``. The server feeds it; it is not listed as ``input`` and no
client sends it. Values: a number, ``true`` or ``false``, or several of them with commas between, row-major; datatype
and shape are those of the model file, which the value must fit. Booleans are only for BOOL.

``snapshot_every`` and ``record_answers`` say how a sequence model's states are kept: a whole number of steps after
which a sequence is snapshotted though no commit is due (0: on commit only), and ``true`` for answers that are written
with the state before they are published, so that a repeat is answered alike whatever the model does (P-3, P-16).

``execution_timeout_ms`` is how long one execution of the model may take, a whole number of milliseconds that goes
before the worker's own setting; 0 is any time.

``delivery`` is the guarantee of the model's answers, ``at_least_once`` or ``exactly_once``, and goes before the
worker's own setting. With ``exactly_once`` states are written in each transaction, and with no answers in them:
``snapshot_every`` and ``record_answers`` are passed over with a warning.

``idempotency_window_ms`` is for how long answers are remembered under their requests' idempotency keys, a whole number
of milliseconds that goes before the worker's own setting; 0 remembers none, and requests with a key are refused (P-17).

All are checked at load: a name that no tensor of the model has, or a value that does not fit, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.schemas.errors import ConfigError

BATCH_AXIS = "batch_axis."
"""Prefix of the parameters that place a batch axis."""

CONSTANT = "constant."
"""Prefix of the parameters that give a model input its value."""

SNAPSHOT_EVERY = "snapshot_every"
RECORD_ANSWERS = "record_answers"
EXECUTION_TIMEOUT_MS = "execution_timeout_ms"
DELIVERY = "delivery"
IDEMPOTENCY_WINDOW_MS = "idempotency_window_ms"
SERVER_PARAMETERS = (
    *(SNAPSHOT_EVERY, RECORD_ANSWERS, EXECUTION_TIMEOUT_MS),
    *(DELIVERY, IDEMPOTENCY_WINDOW_MS),
)
"""Parameters that the worker reads, whatever the backend."""

GUARANTEES = ("at_least_once", "exactly_once")
"""Values of ``delivery``."""


def parameter_field(prefix: str, tensor: str) -> str:
    """Return what error sentences call one of these parameters."""
    return f"parameters[{prefix}{tensor}]"


def read_batch_axes(parameters: Mapping[str, str], file: str) -> dict[str, int]:
    """Return tensor name → place of its batch axis.

    Raises:
        ConfigError: A value is no non-negative integer.
    """
    axes: dict[str, int] = {}
    for tensor, text in _named(parameters, BATCH_AXIS).items():
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(
                "expected a non-negative integer, the place of the batch axis in the model's tensor",
                file=file,
                field=parameter_field(BATCH_AXIS, tensor),
                value=repr(text),
            )
        axes[tensor] = int(text)
    return axes


def read_constants(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return model input → its value as text; the backend reads it, which knows the datatype."""
    return _named(parameters, CONSTANT)


def read_snapshot_every(parameters: Mapping[str, str], file: str) -> int | None:
    """Return ``snapshot_every``, None where the worker's own setting holds.

    Raises:
        ConfigError: It is no whole number.
    """
    return _whole(
        parameters, SNAPSHOT_EVERY, "of steps, 0 for snapshots before commits only", file
    )


def read_execution_timeout_ms(parameters: Mapping[str, str], file: str) -> int | None:
    """Return ``execution_timeout_ms``, None where the worker's own setting holds.

    Raises:
        ConfigError: It is no whole number.
    """
    return _whole(parameters, EXECUTION_TIMEOUT_MS, "of milliseconds, 0 for any time", file)


def read_idempotency_window_ms(parameters: Mapping[str, str], file: str) -> int | None:
    """Return ``idempotency_window_ms``, None where the worker's own setting holds.

    Raises:
        ConfigError: It is no whole number.
    """
    return _whole(
        parameters, IDEMPOTENCY_WINDOW_MS, "of milliseconds, 0 to remember no answers", file
    )


def _whole(parameters: Mapping[str, str], name: str, expected: str, file: str) -> int | None:
    text = parameters.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ConfigError(
            f"expected a whole number {expected}",
            file=file,
            field=parameter_field("", name),
            value=repr(text),
        )
    return int(text)


def read_record_answers(parameters: Mapping[str, str], file: str) -> bool:
    """Return ``record_answers``, false where it is not given.

    Raises:
        ConfigError: It is neither true nor false.
    """
    text = parameters.get(RECORD_ANSWERS, "false")
    if text not in ("true", "false"):
        raise ConfigError(
            "expected true or false",
            file=file,
            field=parameter_field("", RECORD_ANSWERS),
            value=repr(text),
        )
    return text == "true"


def read_delivery(parameters: Mapping[str, str], file: str) -> str | None:
    """Return ``delivery``, None where the worker's own setting holds.

    Raises:
        ConfigError: It is no guarantee.
    """
    text = parameters.get(DELIVERY)
    if text not in (None, *GUARANTEES):
        raise ConfigError(
            f"expected one of {', '.join(GUARANTEES)}",
            file=file,
            field=parameter_field("", DELIVERY),
            value=repr(text),
        )
    return text


def _named(parameters: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {
        key.removeprefix(prefix): parameters[key]
        for key in sorted(parameters)
        if key.startswith(prefix)
    }
