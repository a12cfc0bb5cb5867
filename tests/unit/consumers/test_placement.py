"""Where answers go."""

from __future__ import annotations

import asyncio

import pytest
from headrace.consumers.placement import MAX_LOOKUPS, MISSING_S, REFRESH_S, Placement
from headrace.schemas.errors import LogError, Reason
from headrace.schemas.record import TP
from service_parts import make_entry


class Topics:
    """A log's topics, with the look-ups counted."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.asked: list[str] = []

    async def partitions(self, topic: str) -> int | None:
        self.asked.append(topic)
        return self.counts.get(topic)


class SlowTopics(Topics):
    """Answers only when the gate is open; counts how many wait for it."""

    def __init__(self, **counts: int) -> None:
        super().__init__(**counts)
        self.gate = asyncio.Event()
        self.full = asyncio.Event()
        self.waiting = 0
        self.most = 0

    async def partitions(self, topic: str) -> int | None:
        found = await super().partitions(topic)
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        if self.waiting == MAX_LOOKUPS:
            self.full.set()
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        return found


class FailingTopics(Topics):
    """Fails while it has an error."""

    error: LogError | None = None

    async def partitions(self, topic: str) -> int | None:
        found = await super().partitions(topic)
        if self.error is not None:
            raise self.error
        return found


class Seconds:
    """A clock that only moves when told."""

    at = 100.0

    def __call__(self) -> float:
        return self.at


def placement(
    topics: Topics, *, results: int = 4, max_topics: int = 100, **more: object
) -> Placement:
    return Placement(
        "results",
        results,
        allowed=lambda name: name.startswith("ok"),
        lookup=topics.partitions,
        max_topics=max_topics,
        **more,  # type: ignore[arg-type]  # arguments by name
    )


def entry_for(reply_topic: str = "", reply_partition: int = -1, partition: int = 3):
    entry = make_entry()
    entry.tp = TP("t", partition)
    entry.reply_topic = reply_topic
    entry.reply_partition = reply_partition
    return entry


def test_results_keep_the_partition_number_and_R8_fewer_partitions_lose_nothing() -> None:
    """Modulo where the target has fewer."""
    assert placement(Topics()).results(3) == ("results", 3)
    assert placement(Topics(), results=2).results(3) == ("results", 1)


async def test_a_reply_topic_is_looked_up_once() -> None:
    """Its partition count is remembered; a named partition is kept, a missing one follows the input's."""
    topics = Topics(ok1=2)
    place = placement(topics)
    first, second = entry_for("ok1"), entry_for("ok1", 0)
    assert place.unknown([first, second]) == {"ok1"}
    await place.learn({"ok1"})
    assert place.unknown([first]) == set()
    assert place.resolve(first) is None
    assert place.resolve(second) is None
    assert (first.reply_topic, first.reply_partition) == ("ok1", 1)
    assert (second.reply_topic, second.reply_partition) == ("ok1", 0)
    assert topics.asked == ["ok1"]


async def test_a_reply_topic_that_is_not_allowed_is_refused_to_the_results_topic() -> None:
    """The typed error names it, and it is not even looked up."""
    topics = Topics(secret=1)
    place = placement(topics)
    entry = entry_for("secret")
    assert place.unknown([entry]) == set()
    error = place.resolve(entry)
    assert error is not None
    assert error.reason is Reason.REPLY_TOPIC_REFUSED
    assert "'secret' is not allowed" in error.detail
    assert entry.reply_topic == ""  # so it goes to the results topic
    assert topics.asked == []


async def test_a_reply_topic_or_partition_that_does_not_exist_is_refused() -> None:
    """Each sentence says which."""
    place = placement(Topics(ok1=2))
    await place.learn({"ok1", "ok2"})
    missing, beyond = entry_for("ok2"), entry_for("ok1", 2)
    error = place.resolve(missing)
    assert error is not None
    assert "'ok2' does not exist" in error.detail
    error = place.resolve(beyond)
    assert error is not None
    assert "reply partition 2 does not exist, 'ok1' has 2 partitions" in error.detail


async def test_remembered_topics_are_bounded() -> None:
    """The one that was not used for the longest is forgotten and looked up again when it is named again."""
    place = placement(Topics(ok1=1, ok2=1, ok3=1), max_topics=2)
    await place.learn(["ok1", "ok2"])
    assert place.unknown([entry_for("ok1")]) == set()
    await place.learn(["ok3"])
    assert place.unknown([entry_for(f"ok{number}") for number in (1, 2, 3)]) == {"ok2"}


async def test_the_look_ups_of_a_block_are_made_together_and_bounded() -> None:
    """Five hundred clients that come at once must not wait for one another's round trips."""
    topics = SlowTopics(**{f"ok{number}": 1 for number in range(500)})
    place = placement(topics, max_topics=500)
    learning = asyncio.create_task(place.learn(topics.counts))
    async with asyncio.timeout(10):
        await topics.full.wait()
    topics.gate.set()
    await learning
    assert topics.most == MAX_LOOKUPS
    assert place.unknown([entry_for(topic) for topic in topics.counts]) == set()


async def test_look_ups_that_take_too_long_end_and_the_requests_are_refused() -> None:
    """A log that does not say must not hold up the requests behind; the sentence does not call the topic missing."""
    topics = SlowTopics(ok1=1)
    place = placement(topics, lookup_timeout_s=0.01)
    async with asyncio.timeout(10):
        await place.learn({"ok1"})
    assert topics.waiting == 0
    entry = entry_for("ok1")
    assert place.unknown([entry]) == set()
    error = place.resolve(entry)
    assert error is not None
    assert error.reason is Reason.REPLY_TOPIC_REFUSED
    assert "'ok1' could not be looked up: no answer within 0.01 s" in error.detail
    assert entry.reply_topic == ""  # so it goes to the results topic


async def test_that_a_topic_is_missing_is_remembered_for_a_moment() -> None:
    """A client of a topic that is not there must not cost each block a look-up; made since, it is found."""
    topics, now = Topics(), Seconds()
    place = placement(topics, now_s=now)
    await place.learn({"ok1"})
    now.at += MISSING_S - 0.1
    assert place.unknown([entry_for("ok1")]) == set()
    now.at += 0.2
    topics.counts["ok1"] = 1
    assert place.unknown([entry_for("ok1")]) == {"ok1"}
    await place.learn({"ok1"})
    assert place.resolve(entry_for("ok1")) is None


async def test_missing_topics_that_are_remembered_are_bounded() -> None:
    """A client that names another one each time costs no memory."""
    place = placement(Topics(), max_topics=10)
    for number in range(100):
        await place.learn({f"ok{number}"})
    known = [n for n in range(100) if not place.unknown([entry_for(f"ok{n}")])]
    assert known == list(range(90, 100))


async def test_a_topic_that_grew_accepts_its_new_partitions_after_a_while() -> None:
    """Its count is read again."""
    topics, now = Topics(ok1=1), Seconds()
    place = placement(topics, now_s=now)
    await place.learn({"ok1"})
    topics.counts["ok1"] = 2
    assert place.resolve(entry_for("ok1", 1)) is not None
    now.at += REFRESH_S
    assert place.unknown([entry_for("ok1", 1)]) == {"ok1"}
    await place.learn({"ok1"})
    assert place.resolve(entry_for("ok1", 1)) is None


async def test_a_known_topic_keeps_its_count_while_the_log_cannot_be_asked() -> None:
    """And is not asked for again with each block."""
    topics, now = FailingTopics(ok1=2), Seconds()
    place = placement(topics, now_s=now)
    await place.learn({"ok1"})
    now.at += REFRESH_S
    topics.error = LogError("the log is away", retriable=True)
    await place.learn({"ok1"})
    assert place.unknown([entry_for("ok1")]) == set()
    assert place.resolve(entry_for("ok1", 1)) is None


async def test_a_topic_nobody_may_describe_is_refused_and_a_log_that_is_away_is_not_its_fault() -> (
    None
):
    """The first would stop the partition for ever; the second is tried again."""
    topics = FailingTopics(ok1=1)
    place = placement(topics)
    topics.error = LogError("not authorised", retriable=False)
    await place.learn({"ok1"})
    error = place.resolve(entry_for("ok1"))
    assert error is not None
    assert "'ok1' could not be looked up: not authorised" in error.detail
    topics.error = LogError("the log is away", retriable=True)
    with pytest.raises(LogError, match="away"):
        await place.learn({"ok2"})
    assert place.unknown([entry_for("ok2")]) == {"ok2"}


async def test_forgotten_reply_topics_are_looked_up_again() -> None:
    """A deleted one must not be believed in for ever."""
    place = placement(Topics(ok1=1))
    await place.learn(["ok1"])
    place.forget()
    assert place.unknown([entry_for("ok1")]) == {"ok1"}


async def test_a_topic_that_refuses_answers_is_tried_again_after_a_while() -> None:
    """Meanwhile its requests are refused without a look-up; one that nobody has named is not to blame."""
    topics, now = Topics(ok=2, replies=2), Seconds()
    place = placement(topics, now_s=now, own={"replies"})
    await place.learn(["ok", "replies"])
    assert not place.refuse("unheard-of", "no right")
    assert not place.refuse("replies", "no right")
    assert not place.refuse("results", "no right")
    assert place.refuse("ok", "no right")
    assert place.refuse("ok", "no right"), "what was on its way is the same topic's"
    entry = entry_for("ok")
    assert place.unknown([entry]) == set()
    error = place.resolve(entry)
    assert error.reason is Reason.REPLY_TOPIC_REFUSED
    assert error.detail == "reply topic 'ok' refuses answers: no right"
    now.at += REFRESH_S
    entry = entry_for("ok")
    assert place.unknown([entry]) == {"ok"}
    await place.learn(["ok"])
    assert place.resolve(entry) is None
