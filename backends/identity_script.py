"""The script of the identity backend: which ``parameters`` it understands, read and checked. Pure.

A condition is ``VALUE`` or ``INPUT=VALUE``: it holds for a request of which any row's first element of the input
(the first input where none is named) equals the value.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.config_parameters import SERVER_PARAMETERS
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig

MAX_DELAY_MS = 600_000
"""Longest scripted delay or block: ten minutes."""

MAX_COUNT = 1_000_000
"""Largest scripted count of rows, executions or responses."""

EACH = "each"
"""Word of ``responses`` for one per element."""

FAILURES = ("error", "retriable", "unavailable", "death")
"""How ``fail_times`` and ``fail_if`` may fail."""

BLOCK_LIMIT_MS = 30_000
"""``block_limit_ms`` where the configuration has none."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Holds for a request of which any row's first element of ``input`` (``""``: the first) equals ``value``."""

    input: str
    value: str

    def __str__(self) -> str:
        """Show it as it was written."""
        return f"{self.input}={self.value}" if self.input else self.value


@dataclass(frozen=True, slots=True)
class Script:
    """What an identity model does besides echoing. Field = parameter, unless said otherwise.

    Attributes:
        accumulate: A sequence model answers with the sum over its steps instead (`headrace.backends.identity_sums`).
        execute_delay_ms: Every execution takes at least this long.
        fail_times: So many first executions of the model fail as a whole.
        fail_if: Condition: a batch that holds such a request fails as a whole.
        fail_as: How those two fail: ``error``, ``retriable`` (it may pass), ``unavailable`` (whatever the batch is), or
            ``death`` (the instance's thread ends).
        error_if: Condition: such a request gets an error of its own, its neighbours are served.
        out_of_memory_above_rows: A batch of more rows fails for want of memory.
        out_of_memory_until_file: Only until this file exists.
        output_rows_delta: From ``output_rows``: so many rows too many, or (negative) too few, in each output.
        output_scalar: From ``output_rows: scalar``: each output is a scalar.
        responses: So many responses for each request of a decoupled model; None is the usual one.
        responses_input: From ``responses: INPUT``: the input's first element says how many.
        responses_each: From ``responses: each``: one for each element along the first input's last axis, which alone
            it carries of the first output; none for an empty input.
        response_delay_ms: A decoupled model takes at least this long for each response.
        response_at: ``block_until_file`` and ``fail_if`` act before the response of this index, and not before the
            execution.
        response_error_at: The response of this index is an error instead, which ends its request.
        empty_final: The last response is not marked final: an empty final one follows, as of Triton's ``repeat``
            backend.
        exit_if: Condition: the process ends at once, as if killed.
        exit_marker_file: ``exit_if`` acts only while this file does not exist, and makes it.
        block_until_file: Executions wait until this file exists.
        block_if: Condition: only batches with such a request wait for ``block_until_file``.
        block_limit_ms: The wait fails after so long.
        healthy_executions: Instances report healthy until the model began so many executions.
        repeatable: A failed batch may be run again in pieces.
        load_delay_ms: Loading takes at least this long.
        fail_load: Loading fails with this sentence.
    """

    accumulate: bool = False
    execute_delay_ms: int = 0
    fail_times: int = 0
    fail_if: Condition | None = None
    fail_as: str = "error"
    error_if: Condition | None = None
    out_of_memory_above_rows: int | None = None
    out_of_memory_until_file: str = ""
    output_rows_delta: int = 0
    output_scalar: bool = False
    responses: int | None = None
    responses_input: str = ""
    responses_each: bool = False
    response_delay_ms: int = 0
    response_at: int | None = None
    response_error_at: int | None = None
    empty_final: bool = False
    exit_if: Condition | None = None
    exit_marker_file: str = ""
    block_until_file: str = ""
    block_if: Condition | None = None
    block_limit_ms: int = BLOCK_LIMIT_MS
    healthy_executions: int | None = None
    repeatable: bool = True
    load_delay_ms: int = 0
    fail_load: str = ""


PARAMETERS = (
    "accumulate",
    "execute_delay_ms",
    "fail_times",
    "fail_if",
    "fail_as",
    "error_if",
    "out_of_memory_above_rows",
    "out_of_memory_until_file",
    "output_rows",
    "responses",
    "response_delay_ms",
    "response_at",
    "response_error_at",
    "empty_final",
    "exit_if",
    "exit_marker_file",
    "block_until_file",
    "block_if",
    "block_limit_ms",
    "healthy_executions",
    "repeatable",
    "load_delay_ms",
    "fail_load",
)
"""Every parameter there is."""

DECOUPLED_PARAMETERS = (
    "responses",
    "response_delay_ms",
    "response_at",
    "response_error_at",
    "empty_final",
)
"""Those that only a decoupled model may have."""


def read_script(config: ModelConfig) -> Script:
    """Read the script from the configuration's ``parameters``.

    Raises:
        ConfigError: A parameter is unknown, or its value has no meaning; names it and what was expected.
    """
    given = config.parameters
    for key in given:
        if key not in PARAMETERS and key not in SERVER_PARAMETERS:
            near = difflib.get_close_matches(key, PARAMETERS, 1)
            raise ConfigError(
                f"unknown to the identity backend{f', did you mean {near[0]!r}?' if near else ''}; "
                f"expected one of {', '.join(PARAMETERS)}",
                field=f"parameters.{key}",
            )
    delta, scalar = _output_rows(given)
    responses, responses_input = _responses(config)
    return Script(
        accumulate=_flag(given, "accumulate", "false"),
        execute_delay_ms=_count(given, "execute_delay_ms", MAX_DELAY_MS) or 0,
        fail_times=_count(given, "fail_times", MAX_COUNT) or 0,
        fail_if=_condition(config, "fail_if"),
        fail_as=_failure(given),
        error_if=_condition(config, "error_if"),
        out_of_memory_above_rows=_count(given, "out_of_memory_above_rows", MAX_COUNT),
        out_of_memory_until_file=given.get("out_of_memory_until_file", ""),
        output_rows_delta=delta,
        output_scalar=scalar,
        responses=responses,
        responses_input=responses_input,
        responses_each=responses_input == EACH,
        response_delay_ms=_count(given, "response_delay_ms", MAX_DELAY_MS) or 0,
        response_at=_count(given, "response_at", MAX_COUNT),
        response_error_at=_count(given, "response_error_at", MAX_COUNT),
        empty_final=_flag(given, "empty_final", "false"),
        exit_if=_condition(config, "exit_if"),
        exit_marker_file=given.get("exit_marker_file", ""),
        block_until_file=given.get("block_until_file", ""),
        block_if=_condition(config, "block_if"),
        block_limit_ms=_count(given, "block_limit_ms", MAX_DELAY_MS) or BLOCK_LIMIT_MS,
        healthy_executions=_count(given, "healthy_executions", MAX_COUNT),
        repeatable=_flag(given, "repeatable", "true"),
        load_delay_ms=_count(given, "load_delay_ms", MAX_DELAY_MS) or 0,
        fail_load=given.get("fail_load", ""),
    )


def _count(given: Mapping[str, str], key: str, maximum: int) -> int | None:
    text = given.get(key)
    if text is None:
        return None
    if not text.isdecimal() or int(text) > maximum:
        raise _bad(key, text, f"an integer from 0 to {maximum}")
    return int(text)


def _condition(config: ModelConfig, key: str) -> Condition | None:
    text = config.parameters.get(key)
    if text is None:
        return None
    name, found, value = text.partition("=")
    if not found:
        return Condition("", text)
    inputs = [tensor.name for tensor in config.inputs]
    if name not in inputs:
        raise _bad(key, text, f"VALUE or INPUT=VALUE with one of the inputs {', '.join(inputs)}")
    return Condition(name, value)


def _output_rows(given: Mapping[str, str]) -> tuple[int, bool]:
    text = given.get("output_rows", "0")
    if text == "scalar":
        return 0, True
    try:
        delta = int(text)
    except ValueError:
        delta = MAX_COUNT + 1
    if abs(delta) > MAX_COUNT:
        raise _bad("output_rows", text, "an integer such as -1 or 2, or the word scalar")
    return delta, False


def _responses(config: ModelConfig) -> tuple[int | None, str]:
    for key in DECOUPLED_PARAMETERS:
        if (text := config.parameters.get(key)) is not None and not config.decoupled:
            raise _bad(key, text, "only in a model with model_transaction_policy.decoupled")
    text = config.parameters.get("responses")
    if text is None:
        return None, ""
    if text == EACH or any(tensor.name == text for tensor in config.inputs):
        return None, text
    if not text.isdecimal() or int(text) > MAX_COUNT:
        raise _bad(
            "responses", text, f"an integer from 0 to {MAX_COUNT}, the name of an input, or each"
        )
    return int(text), ""


def _failure(given: Mapping[str, str]) -> str:
    text = given.get("fail_as", "error")
    if text not in FAILURES:
        raise _bad("fail_as", text, f"one of {', '.join(FAILURES)}")
    return text


def _flag(given: Mapping[str, str], key: str, default: str) -> bool:
    text = given.get(key, default)
    if text not in ("true", "false"):
        raise _bad(key, text, "true or false")
    return text == "true"


def _bad(key: str, value: str, expected: str) -> ConfigError:
    return ConfigError(f"expected {expected}", field=f"parameters.{key}", value=repr(value))
