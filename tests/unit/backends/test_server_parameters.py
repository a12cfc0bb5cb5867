"""Parameters that the worker reads whatever the backend: no backend takes them for a mistake."""

from __future__ import annotations

import logging

import pytest
from backend_kit import parsed
from headrace.backends.identity_script import read_script
from headrace.backends.onnx_settings import read_settings
from headrace.schemas.config_parameters import SERVER_PARAMETERS


@pytest.mark.parametrize("name", SERVER_PARAMETERS)
def test_backends_pass_the_servers_own_parameters_over(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The identity backend refuses unknown parameters, the onnxruntime backend warns of them."""
    config = parsed(f'parameters {{ key: "{name}" value {{ string_value: "1" }} }}')
    read_script(config)
    with caplog.at_level(logging.WARNING):
        read_settings(config, 2)
    assert not caplog.records
