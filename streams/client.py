"""Clients over Kafka for Python programs: `Client` for asyncio, `SyncClient` for threads, with the same names.

What they raise are the kinds of `headrace.schemas.errors.InferError`, and `LogError` where no broker can be used.
"""

from headrace.streams.client_async import Client
from headrace.streams.client_results import Results
from headrace.streams.client_sequence import SequenceSteps
from headrace.streams.client_sync import SyncClient, SyncResults, SyncSequenceSteps
from headrace.streams.client_values import Answer, Inputs, Options, Result

__all__ = [
    "Answer",
    "Client",
    "Inputs",
    "Options",
    "Result",
    "Results",
    "SequenceSteps",
    "SyncClient",
    "SyncResults",
    "SyncSequenceSteps",
]
