"""A model's guarantee: its own parameter goes before the worker's setting, and sequences follow from it (P-3)."""

import logging
from dataclasses import replace

import pytest
from headrace.consumers.delivery_mode import delivery_mode
from headrace.consumers.model_sequences import StateOptions
from headrace.consumers.sequence_parts import state_options
from headrace.consumers.settings import WorkerSettings
from headrace.schemas.config_parameters import read_delivery
from headrace.schemas.errors import ConfigError
from headrace.schemas.model_config import ModelConfig
from headrace.streams.log import Mode
from service_parts import make_config

ALO, EOS = Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE
PLAIN = replace(make_config(), name="m")


def config(**parameters: str) -> ModelConfig:
    return replace(PLAIN, parameters=parameters)


@pytest.mark.parametrize(
    ("parameters", "setting", "mode"),
    [
        ({}, ALO, ALO),
        ({}, EOS, EOS),
        ({"delivery": "exactly_once"}, ALO, EOS),
        ({"delivery": "at_least_once"}, EOS, ALO),
    ],
)
def test_a_models_parameter_goes_before_the_setting(parameters, setting, mode):
    assert delivery_mode(config(**parameters), setting) is mode


def test_a_guarantee_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError) as refused:
        read_delivery({"delivery": "at_most_once"}, "config.pbtxt")
    assert str(refused.value) == (
        "config.pbtxt: parameters[delivery] = 'at_most_once': expected one of at_least_once, exactly_once"
    )


def test_P3_exactly_once_writes_states_in_transactions_only_and_says_what_it_passes_over(caplog):
    settings = WorkerSettings("w", delivery=EOS, snapshot_every=3)
    with caplog.at_level(logging.WARNING):
        assert state_options(config(record_answers="true"), settings) == StateOptions()
    assert [record.getMessage().partition(" is ")[0] for record in caplog.records] == [
        "model 'm': snapshot_every",
        "model 'm': record_answers",
    ]
    own = config(record_answers="true", delivery="at_least_once")
    assert state_options(own, settings) == StateOptions(3, record_answers=True)
