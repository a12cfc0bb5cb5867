"""Environment variables that begin like our settings and are none: misspelt ones, and Kafka's own properties."""

from __future__ import annotations

import difflib
import os

from headrace.deploy.settings import PREFIX, Settings, variable_name

NOT_SETTINGS = frozenset(
    {"HEADRACE_TEST_BOOTSTRAP", "HEADRACE_PEERS", "HEADRACE_URL", "HEADRACE_TOKEN"}
)
"""Variables with the prefix that are read elsewhere: by tests, benchmarks and single commands."""

KAFKA_PREFIX = "HEADRACE_KAFKA_"
"""Of variables that carry Kafka's own properties, except ``HEADRACE_KAFKA_CONFIG``, which names a file of them."""

ORCHESTRATORS = ("SERVICE_HOST", "SERVICE_PORT", "PORT")
"""How the variables begin, after the prefix, that an orchestrator makes for a service called headrace-kafka."""


def misspelt_variables() -> list[str]:
    """Return a warning sentence per environment variable that nearly is one of ours.

    Others with the prefix are left alone: an orchestrator makes such names for a service called headrace.
    """
    known = [variable_name(field) for field in Settings.model_fields]
    warnings = []
    for name in sorted(os.environ):
        if name.startswith(KAFKA_PREFIX) or name in known or name in NOT_SETTINGS:
            continue
        if name.startswith(PREFIX):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if near:
                warnings.append(f"{name} is no setting and is ignored; did you mean {near[0]}?")
    return warnings


def kafka_variables() -> dict[str, str]:
    """Return the environment variables that carry Kafka's own properties."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(KAFKA_PREFIX)
        and name != variable_name("kafka_config")
        and not name.removeprefix(KAFKA_PREFIX).startswith(ORCHESTRATORS)
    }
