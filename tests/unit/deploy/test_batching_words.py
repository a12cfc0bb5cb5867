"""How the list of loaded models says in words how requests are batched."""

import pytest
from backend_kit import parsed
from headrace.deploy.loading import batching_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "none"),
        ("max_batch_size: 4", "none, up to 4 rows a request"),
        ("max_batch_size: 4 dynamic_batching {}", "up to 4 rows"),
        (
            "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 9 }",
            "up to 4 rows, 9 µs delay",
        ),
        ("max_batch_size: 4 sequence_batching {}", "sequences, direct, 4 slots an instance"),
        ("sequence_batching {}", "sequences, direct, 1 slot an instance"),
        (
            "max_batch_size: 4 sequence_batching { oldest { max_candidate_sequences: 9 } }",
            "sequences, oldest, 9 slots an instance",
        ),
    ],
)
def test_SB11_the_words_name_strategy_and_slots(text, words):
    assert batching_of(parsed(text)) == words
