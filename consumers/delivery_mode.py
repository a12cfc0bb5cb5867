"""Which guarantee each model's answers have: its own parameter's, else the worker's setting."""

from __future__ import annotations

from headrace.schemas.config_parameters import DELIVERY, parameter_field, read_delivery
from headrace.schemas.errors import ConfigError, LogError
from headrace.schemas.model_config import ModelConfig
from headrace.streams.log import Log, Mode


def delivery_mode(config: ModelConfig, default: Mode) -> Mode:
    """Return the guarantee that a model's parameter ``delivery`` asks for, else the worker's."""
    own = read_delivery(config.parameters, "")
    return default if own is None else Mode(own)


def require_mode(log: Log, config: ModelConfig, default: Mode) -> Mode:
    """Return a model's guarantee, and make sure that the log can give it (DELIVERY P-9).

    Raises:
        ConfigError: It cannot; the sentence says why, and whose wish it is.
    """
    mode = delivery_mode(config, default)
    try:
        log.require(mode)
    except LogError as exc:
        if read_delivery(config.parameters, "") is None:
            raise ConfigError(exc.detail, field="delivery", value=mode) from exc
        file = f"model '{config.name}'"
        raise ConfigError(
            exc.detail, file=file, field=parameter_field("", DELIVERY), value=mode
        ) from exc
    return mode
