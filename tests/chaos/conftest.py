"""Three brokers for the chaos tests, started once."""

import brokers
import pytest
from chaos.play import three_brokers


@pytest.fixture(scope="session")
def three(tmp_path_factory):
    """Three brokers, and the small file system of one, or why it has none."""
    try:
        brokers.jars()
    except brokers.Unavailable as missing:
        brokers.lacking(f"no Apache Kafka: {missing}")
    with three_brokers(tmp_path_factory.mktemp("chaos")) as found:
        yield found
