"""What a model's parameters and the worker's settings make of a version's bounds."""

from __future__ import annotations

import pytest
from headrace.consumers.settings import WorkerSettings
from headrace.consumers.version_parts import fault_bounds
from headrace.schemas.config_parameters import read_execution_timeout_ms
from headrace.schemas.errors import ConfigError
from service_parts import ECHO, make_config


def config_with(value: str):
    parameter = f'{{ key: "execution_timeout_ms" value {{ string_value: "{value}" }} }}'
    return make_config(f"{ECHO} parameters [{parameter}]")


@pytest.mark.parametrize(("value", "expected_ms"), [(None, 2000), ("250", 250), ("0", 0)])
def test_a_models_own_execution_timeout_goes_before_the_workers(value, expected_ms) -> None:
    """0 is any time, for the model as for the worker."""
    settings = WorkerSettings("w", execution_timeout_s=2.0)
    config = make_config() if value is None else config_with(value)
    assert fault_bounds(config, settings).execution_timeout_ns == expected_ms * 1_000_000


@pytest.mark.parametrize("value", ["-1", "1.5", "soon", "1" * 10])
def test_an_execution_timeout_that_is_no_number_is_refused(value) -> None:
    with pytest.raises(
        ConfigError, match=r"execution_timeout_ms.*expected a whole number of mill"
    ):
        read_execution_timeout_ms(config_with(value).parameters, "config.pbtxt")
