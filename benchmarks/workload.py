"""The work that every contender gets: an MLP 128 → 512 → 512 → 10 in float32 with a fixed seed, one row a request.

Request number ``n`` carries row ``n % POOL`` of a fixed pool, so any number of requests can be made, and their
answers checked against numpy, without keeping them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SIZES = (128, 512, 512, 10)
MODEL = "mlp"
INPUT = "INPUT"
OUTPUT = "LOGITS"
MAX_BATCH_ROWS = 64
TOLERANCE = 1e-3
POOL = (
    8191  # a prime: no partition count, batch or fetch size divides it, so mixed-up answers show
)
_SEED = 128512


def weights() -> Iterator[tuple[Floats, Floats]]:
    """Yield weight [in, out] and bias [out] of each layer."""
    rng = np.random.default_rng(_SEED)
    for fan_in, fan_out in itertools.pairwise(SIZES):
        scale = np.float32(1 / np.sqrt(fan_in))
        matrix = rng.standard_normal((fan_in, fan_out), dtype=np.float32) * scale
        yield matrix, rng.standard_normal(fan_out, dtype=np.float32) * np.float32(0.1)


@cache
def pool() -> Floats:
    """Return the request rows [POOL, 128]."""
    return np.random.default_rng(_SEED + 1).standard_normal((POOL, SIZES[0]), dtype=np.float32)


@cache
def expected() -> Floats:
    """Return numpy's answer [POOL, 10] to each row of the pool."""
    x = pool()
    layers = list(weights())
    for matrix, bias in layers[:-1]:
        x = np.maximum(x @ matrix + bias, 0)
    matrix, bias = layers[-1]
    answer: Floats = x @ matrix + bias
    return answer


def is_right(numbers: npt.NDArray[np.int64], answers: Floats) -> npt.NDArray[np.bool_]:
    """Tell for each answer [n, 10] whether it is the one to the request of that number [n]."""
    close = np.abs(answers - expected()[numbers % POOL]) <= TOLERANCE
    verdict: npt.NDArray[np.bool_] = close.all(axis=1)
    return verdict
