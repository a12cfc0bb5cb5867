"""Answers that are too large for a record: stored, and a claim sent in their place (FAULTS B57, B95)."""

from __future__ import annotations

import asyncio

from headrace.consumers.batcher import Refusal
from headrace.consumers.encoding import Answer, Encoded
from headrace.schemas.claim_check import write_claim
from headrace.schemas.errors import InferError, Reason, TooLarge
from headrace.schemas.record import CLAIM_CHECK
from headrace.streams.claims import Claims


class ClaimedAnswers:
    """Stores the large ones among a batch's answers, before any of the batch is published."""

    def __init__(self, claims: Claims) -> None:
        """Keep the store."""
        self._claims = claims
        self._above = claims.bounds.above

    def takes(self, encoded: Encoded) -> bool:
        """Whether one of these answers is to be stored."""
        above = self._above
        return any(len(value) > above for _, value, _ in encoded.answers)

    async def store(self, encoded: Encoded) -> Encoded:
        """Return the same with a claim in place of each large answer; what cannot be stored fails alone."""
        above = self._above
        large = [answer for answer in encoded.answers if len(answer[1]) > above]
        stored = iter(await asyncio.gather(*map(self._stored, large)))
        answers: list[Answer] = []
        failures = list(encoded.failures)
        for answer in encoded.answers:
            found = next(stored) if len(answer[1]) > above else answer
            if isinstance(found, Refusal):
                failures.append(found)
            else:
                answers.append(found)
        return Encoded(answers, failures, encoded.output_ns)

    async def _stored(self, answer: Answer) -> Answer | Refusal:
        entry, value, headers = answer
        try:
            claim = await self._claims.put(value)
        except TooLarge as exc:
            error = TooLarge(
                f"the answer cannot be stored: {exc.detail}", reason=Reason.ANSWER_TOO_LARGE
            )
            return Refusal(entry, error)
        except InferError as exc:
            return Refusal(entry, exc)
        return entry, b"", [*headers, (CLAIM_CHECK, write_claim(claim))]
