"""ONNX Runtime's session settings as a model configuration spells them (SEMANTICS MR-42, MR-43). Pure."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.schemas.config_parameters import BATCH_AXIS, CONSTANT, SERVER_PARAMETERS
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import InstanceKind, ModelConfig

logger = logging.getLogger(__name__)

KNOWN = (
    "intra_op_thread_count",
    "inter_op_thread_count",
    "execution_mode",
    "enable_mem_arena",
    "enable_mem_pattern",
    "memory.enable_memory_arena_shrinkage",
    "share_session_between_instances",
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
)
"""Keys of ``parameters`` that mean something here, besides ``session.*``, which go to the session as they are,
and those of `headrace.schemas.config_parameters`."""

SESSION_PREFIX = "session."
MAX_THREADS = 1024
"""Threads of one pool at most: a typing error should not start a million."""


class GraphLevel(StrEnum):
    """How far ONNX Runtime rewrites the graph at load."""

    DISABLE_ALL = "DISABLE_ALL"
    BASIC = "BASIC"
    EXTENDED = "EXTENDED"
    ALL = "ALL"


GRAPH_LEVELS = {-1: GraphLevel.BASIC, 1: GraphLevel.EXTENDED, 2: GraphLevel.DISABLE_ALL}
"""``optimization.graph.level`` → ONNX Runtime's level, as Triton's backend maps it; any other value is ALL."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of one session.

    Attributes:
        intra_op_threads: Threads within an operator, the caller's own included; 0 lets ONNX Runtime choose
            (all physical cores).
        inter_op_threads: Threads across operators, for ``parallel`` only; 0 lets ONNX Runtime choose.
        parallel: Run independent operators at the same time (``execution_mode`` 1).
        graph_level: How far the graph is rewritten at load.
        enable_mem_arena: Keep freed CPU memory for later runs.
        enable_mem_pattern: Plan memory per input shape.
        shrink_arenas: Devices whose arenas are shrunk after each run, such as ``cpu:0;gpu:0``, or ``""``.
        share_session: All instances of a model on one device run one session; None: on CPU only.
        entries: Further ``session.*`` entries.
    """

    intra_op_threads: int = 1
    inter_op_threads: int = 0
    parallel: bool = False
    graph_level: GraphLevel = GraphLevel.ALL
    enable_mem_arena: bool = True
    enable_mem_pattern: bool = True
    shrink_arenas: str = ""
    share_session: bool | None = None
    entries: Mapping[str, str] = field(default_factory=dict)


def read_settings(config: ModelConfig, cores: int) -> SessionSettings:
    """Read the session settings from ``parameters`` and ``optimization``.

    Args:
        config: The model's configuration.
        cores: CPU cores that this process may use, for the default number of threads.

    Raises:
        ConfigError: A value cannot be what its key means; names key, value and what was expected.
    """
    parameters = config.parameters
    _warn_unknown(config)
    # ONNX Runtime copies unknown session keys without complaint, so spelling is the user's own care here.
    entries = {"session.intra_op.allow_spinning": "0"}
    entries.update({k: v for k, v in parameters.items() if k.startswith(SESSION_PREFIX)})
    return SessionSettings(
        intra_op_threads=_integer(
            parameters, "intra_op_thread_count", default_threads(config, cores), MAX_THREADS
        ),
        inter_op_threads=_integer(parameters, "inter_op_thread_count", 0, MAX_THREADS),
        parallel=_integer(parameters, "execution_mode", 0, 1) == 1,
        graph_level=GRAPH_LEVELS.get(config.message.optimization.graph.level, GraphLevel.ALL),
        enable_mem_arena=_boolean(parameters, "enable_mem_arena", default=True),
        enable_mem_pattern=_boolean(parameters, "enable_mem_pattern", default=True),
        shrink_arenas=parameters.get("memory.enable_memory_arena_shrinkage", ""),
        share_session=(
            _boolean(parameters, "share_session_between_instances", default=False)
            if "share_session_between_instances" in parameters
            else None
        ),
        entries=entries,
    )


def default_threads(config: ModelConfig, cores: int) -> int:
    """Return the threads of a session's pool when ``intra_op_thread_count`` is absent.

    Instances share one session on CPU: each brings its own calling thread, the pool brings ``threads - 1``
    more. One core is left to the event loop, so that callers, pool and loop together are ``cores`` threads:
    ``(threads - 1) + instances + 1 = cores``. Triton leaves ONNX Runtime's default, all cores for each
    instance, which on few cores starves the loop that feeds the model; an explicit 0 asks for just that.
    """
    instances = sum(
        group.count for group in config.instance_groups if group.kind is not InstanceKind.KIND_GPU
    )
    return max(1, min(cores - max(instances, 1), MAX_THREADS))


def _warn_unknown(config: ModelConfig) -> None:
    for key in config.parameters:
        if key in (*KNOWN, *SERVER_PARAMETERS) or key.startswith(
            (SESSION_PREFIX, BATCH_AXIS, CONSTANT)
        ):
            continue
        near = difflib.get_close_matches(key, KNOWN, 1)
        logger.warning(
            "model '%s': parameter '%s' means nothing to the onnxruntime backend%s",
            config.name,
            key,
            f"; did you mean '{near[0]}'?" if near else "",
        )


def _integer(parameters: Mapping[str, str], key: str, default: int, maximum: int) -> int:
    text = parameters.get(key)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= maximum:
        raise ConfigError(
            f"expected an integer from 0 to {maximum}", field=f"parameters.{key}", value=repr(text)
        )
    return value


def _boolean(parameters: Mapping[str, str], key: str, *, default: bool) -> bool:
    text = parameters.get(key)
    if text is None:
        return default
    value = BOOLEANS.get(text.lower())
    if value is None:
        raise ConfigError("expected true or false", field=f"parameters.{key}", value=repr(text))
    return value


BOOLEANS = {"true": True, "1": True, "yes": True, "on": True}
BOOLEANS.update({"false": False, "0": False, "no": False, "off": False})
"""Words for a boolean parameter, lower case."""
