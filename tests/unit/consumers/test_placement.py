"""Where answers and dead letters go."""

from __future__ import annotations

from headrace.consumers.dead_letters import dead_letter
from headrace.consumers.placement import Placement
from headrace.schemas.errors import Reason, UndecodableRecord
from headrace.schemas.record import TP
from service_parts import PlainRecord, make_entry


class Topics:
    """A log's topics, with the look-ups counted."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.asked: list[str] = []

    async def partitions(self, topic: str) -> int | None:
        self.asked.append(topic)
        return self.counts.get(topic)


def placement(topics: Topics, *, results: int = 4, max_topics: int = 100) -> Placement:
    return Placement(
        "results",
        results,
        allowed=lambda name: name.startswith("ok"),
        lookup=topics.partitions,
        max_topics=max_topics,
    )


def entry_for(reply_topic: str = "", reply_partition: int = -1, partition: int = 3):
    entry = make_entry()
    entry.tp = TP("t", partition)
    entry.reply_topic = reply_topic
    entry.reply_partition = reply_partition
    return entry


def test_results_keep_the_partition_number_and_R8_fewer_partitions_lose_nothing() -> None:
    """Modulo where the target has fewer."""
    assert placement(Topics()).target(entry_for()) == ("results", 3)
    assert placement(Topics(), results=2).target(entry_for()) == ("results", 1)


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
    assert place.target(first) == ("ok1", 1)
    assert place.target(second) == ("ok1", 0)
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
    assert place.target(entry) == ("results", 3)
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
    """The oldest is forgotten and looked up again when it is named again."""
    place = placement(Topics(ok1=1, ok2=1), max_topics=1)
    await place.learn(["ok1", "ok2"])
    assert place.unknown([entry_for("ok1"), entry_for("ok2")]) == {"ok1"}


def test_a_dead_letter_keeps_the_original_and_says_where_and_why() -> None:
    """Original key, bytes and headers; coordinates, reason, class, model, attempts; no stale dead-letter header."""
    entry = make_entry()
    entry.tp = TP("requests", 5)
    entry.record = PlainRecord(
        "requests",
        5,
        42,
        1234,
        b"k",
        b"\xff\x00",
        (("x-a", b"1"), ("dead-letter-reason", b"old")),
    )
    error = UndecodableRecord("bad bytes")
    out = dead_letter(entry, error, model_name="m", target=TP("dead", 1), max_record_bytes=1000)
    assert (out.topic, out.partition, out.key, out.value) == ("dead", 1, b"k", b"\xff\x00")
    headers = dict(out.headers)
    assert headers["x-a"] == b"1"
    assert headers["dead-letter-source"] == b"requests/5/42"
    assert headers["dead-letter-reason"] == b"undecodable"
    assert headers["dead-letter-class"] == b"UndecodableRecord"
    assert headers["dead-letter-detail"] == b"bad bytes"
    assert headers["dead-letter-model"] == b"m"
    assert headers["dead-letter-attempts"] == b"1"
    assert len([name for name, _ in out.headers if name == "dead-letter-reason"]) == 1


def test_a_dead_letter_above_the_limit_says_what_it_leaves_out() -> None:
    """Our headers must not push a record over the limit and stop the partition."""
    entry = make_entry()
    entry.record = PlainRecord(value=b"v" * 900)
    out = dead_letter(
        entry,
        UndecodableRecord("bad"),
        model_name="m",
        target=TP("dead", 0),
        max_record_bytes=1000,
    )
    assert out.value == b""
    assert dict(out.headers)["dead-letter-omitted-bytes"] == b"900"


def test_a_dead_letter_without_key_and_value_is_still_a_record() -> None:
    """A null value without a key cannot be produced: it becomes an empty one."""
    entry = make_entry()
    entry.record = PlainRecord(value=None)
    out = dead_letter(
        entry,
        UndecodableRecord("null"),
        model_name="m",
        target=TP("dead", 0),
        max_record_bytes=9000,
    )
    assert out.value == b""


async def test_forgotten_reply_topics_are_looked_up_again() -> None:
    """A deleted one must not be believed in for ever."""
    place = placement(Topics(ok1=1))
    await place.learn(["ok1"])
    place.forget()
    assert place.unknown([entry_for("ok1")]) == {"ok1"}
