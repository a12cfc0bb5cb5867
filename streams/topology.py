"""Which topics there are: prefix and model in, names, partitions and settings out. Pure.

The names are public, other people's producers and consumers rely on them (DESIGN §4). A model may be mapped onto
topics of any name; one whose own name cannot be part of a topic's name must be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from aiokafka.partitioner import murmur2
from headrace.schemas.errors import ConfigError
from headrace.streams.log import TopicSpec

MAX_TOPIC_CHARS = 249  # Kafka's Topic.MAX_NAME_LENGTH
LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
RULE = f"a topic's name is made of a-z A-Z 0-9 . _ - and has at most {MAX_TOPIC_CHARS} of them"
SHORT_RETENTION_MS = 600_000  # longer than any caller waits
SEGMENT_MS = 600_000
SESSION_TIMEOUT_MS = 45_000  # Kafka's and our default of session.timeout.ms
LAG_SESSIONS = 10
STATE_SEGMENT_MS = 3_600_000
MIN_SEGMENT_MS = 60_000
STATE_SEGMENT_BYTES = 64 * 1024 * 1024

LOG_APPEND = {"message.timestamp.type": "LogAppendTime"}
SHORT = {"retention.ms": str(SHORT_RETENTION_MS), "segment.ms": str(SEGMENT_MS)}
COMPACTED = {"cleanup.policy": "compact"}
# No client may have its answers written where we or other workers read our own words.
INTERNAL = ("status", "control", "cancels", "dead-letters")
INTERNAL_SUFFIXES = (".state", ".joins", ".answers")


@dataclass(frozen=True, slots=True)
class MappedTopics:
    """A model's topics under other names; an empty one keeps the usual name.

    Attributes:
        requests: Somebody else's, and so may the others be.
        results: Of answers.
        state: Of sequences' snapshots.
        answers: Of remembered answers.
        skips_nulls: Requests whose value is null are passed over: they get no answer.
    """

    requests: str = ""
    results: str = ""
    state: str = ""
    answers: str = ""
    skips_nulls: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """A function from a model's name to its topics.

    Attributes:
        prefix: First part of every name.
        partitions: Of request topics that are created, and of result topics beside them.
        reply_partitions: Of the replies topic: at least one per gateway.
        replication: Replication factor; -1 is the broker's default.
        mapped: Topics under other names, by model.
        reply_topics: Patterns (``*``, ``?``) of topics that a client may name for its reply; empty is everything
            under the prefix and the mapped topics. Topics that Headrace itself reads are never allowed.
        session_timeout_ms: Of the workers (``session.timeout.ms``). Compaction leaves snapshots of state alone for
            ten times as long: a zombie writes until its session has ended, and whoever takes over must find what
            was there before it (DELIVERY P-4).
    """

    prefix: str = "headrace"
    partitions: int = 4
    reply_partitions: int = 16
    replication: int = -1
    mapped: Mapping[str, MappedTopics] = field(default_factory=dict)
    reply_topics: tuple[str, ...] = ()
    session_timeout_ms: int = SESSION_TIMEOUT_MS

    def __post_init__(self) -> None:
        """Refuse what could never be created.

        Raises:
            ConfigError: The prefix or a mapped name is illegal, or a count or the timeout is below one.
        """
        check_topic(f"{self.prefix}.dead-letters", part=self.prefix, what="prefix")
        for model, topics in self.mapped.items():
            for what in ("requests", "results", "state", "answers"):
                if name := getattr(topics, what):
                    check_topic(name, part=name, what=f"{what} topic of model {model}")
        for name, count in (
            ("partitions", self.partitions),
            ("reply_partitions", self.reply_partitions),
            ("session_timeout_ms", self.session_timeout_ms),
        ):
            if count < 1:
                raise ConfigError("expected 1 or more", field=name, value=count)

    @property
    def replies(self) -> str:
        """Replies to gateways; they claim its partitions."""
        return f"{self.prefix}.replies"

    @property
    def async_replies(self) -> str:
        """Calls that were accepted with 202, and their answers; read by every gateway that has such calls."""
        return f"{self.prefix}.async-replies"

    @property
    def cancels(self) -> str:
        """Correlation ids of cancelled calls, read by all workers."""
        return f"{self.prefix}.cancels"

    @property
    def control(self) -> str:
        """Load and unload."""
        return f"{self.prefix}.control"

    @property
    def status(self) -> str:
        """What each worker and gateway has."""
        return f"{self.prefix}.status"

    @property
    def dead_letters(self) -> str:
        """Inputs that could not be served."""
        return f"{self.prefix}.dead-letters"

    def requests(self, model: str) -> str:
        """Return a model's request topic; `ConfigError` if the model's name needs a mapping."""
        named = self.mapped.get(model, MappedTopics()).requests
        return named or self._own(model, "requests")

    def results(self, model: str) -> str:
        """Return a model's result topic; `ConfigError` if the model's name needs a mapping."""
        named = self.mapped.get(model, MappedTopics()).results
        return named or self._own(model, "results")

    def state(self, model: str) -> str:
        """Return a model's topic of sequence snapshots; `ConfigError` if the model's name needs a mapping."""
        named = self.mapped.get(model, MappedTopics()).state
        return named or self._own(model, "state")

    def answers(self, model: str) -> str:
        """Return a model's topic of remembered answers; `ConfigError` if the model's name needs a mapping."""
        named = self.mapped.get(model, MappedTopics()).answers
        return named or self._own(model, "answers")

    def group(self, model: str) -> str:
        """Return a model's consumer group; one each, so that loading a model rebalances no other."""
        return f"{self.prefix}.{model}"

    def model_specs(
        self, model: str, *, partitions: int = 0, stateful: bool = False, window_ms: int = 0
    ) -> tuple[TopicSpec, ...]:
        """Return the topics of a model as they should be; partition counts are equal (DESIGN §4).

        A requests topic of another name is somebody else's: it must be there, and is as it is.

        Args:
            model: Its name.
            partitions: Of each; 0 is this topology's default. Pass what an existing request topic has.
            stateful: It serves sequences: with the topic of their state.
            window_ms: For how long answers are remembered, ms; where it does not serve sequences, with their topic. 0:
                they are not.
        """
        count = partitions or self.partitions
        requests = TopicSpec(self.requests(model), count, LOG_APPEND, self.replication)
        results = TopicSpec(self.results(model), count, {}, self.replication)
        is_own = not self.mapped.get(model, MappedTopics()).requests
        specs = (requests, results) if is_own else (results,)
        if stateful:
            kept = TopicSpec(self.state(model), count, self._state_settings(), self.replication)
        elif window_ms:
            settings = self._answer_settings(window_ms)
            kept = TopicSpec(self.answers(model), count, settings, self.replication)
        else:
            return specs
        return (*specs, kept)

    def shared_specs(self) -> tuple[TopicSpec, ...]:
        """Return the topics that all models share."""
        return (
            TopicSpec(self.replies, self.reply_partitions, SHORT, self.replication),
            TopicSpec(self.cancels, 1, SHORT, self.replication),
            TopicSpec(self.control, 1, COMPACTED, self.replication),
            TopicSpec(self.status, 1, COMPACTED, self.replication),
            TopicSpec(self.dead_letters, self.partitions, {}, self.replication),
        )

    def async_spec(self, window_ms: int) -> TopicSpec:
        """Return the topic of calls that were accepted with 202, made by the first of them.

        Args:
            window_ms: For how long such a call may wait for its answer, and then its answer for its caller, ms.
        """
        segment_ms = max(MIN_SEGMENT_MS, min(SEGMENT_MS, window_ms // 4))
        settings = {"retention.ms": str(2 * window_ms), "segment.ms": str(segment_ms)}
        return TopicSpec(self.async_replies, self.partitions, settings, self.replication)

    def reply_allowed(self, topic: str) -> bool:
        """Say whether a client may have its answer written to this topic."""
        if not LEGAL.fullmatch(topic) or len(topic) > MAX_TOPIC_CHARS:
            return False
        if self._is_internal(topic):
            return False
        if self.reply_topics:
            return any(fnmatchcase(topic, pattern) for pattern in self.reply_topics)
        ours = topic.startswith(f"{self.prefix}.")
        return ours or any(topic in (m.requests, m.results) for m in self.mapped.values())

    def _state_settings(self) -> Mapping[str, str]:
        # The segment that is written is never compacted: with Kafka's defaults, a week or a gigabyte per partition
        # would be read at each takeover.
        return {
            **COMPACTED,
            "min.compaction.lag.ms": str(LAG_SESSIONS * self.session_timeout_ms),
            "segment.ms": str(STATE_SEGMENT_MS),
            "segment.bytes": str(STATE_SEGMENT_BYTES),
        }

    def _answer_settings(self, window_ms: int) -> Mapping[str, str]:
        # Segments of a part of the window: one is deleted once its last record is older than the window.
        return {
            **self._state_settings(),
            "cleanup.policy": "compact,delete",
            "retention.ms": str(window_ms),
            "segment.ms": str(max(MIN_SEGMENT_MS, min(STATE_SEGMENT_MS, window_ms // 4))),
        }

    def _is_internal(self, topic: str) -> bool:
        if any(topic in (mapped.state, mapped.answers) for mapped in self.mapped.values()):
            return True
        own, _, rest = topic.partition(f"{self.prefix}.")
        return not own and bool(rest) and (rest in INTERNAL or rest.endswith(INTERNAL_SUFFIXES))

    def _own(self, model: str, kind: str) -> str:
        name = f"{self.prefix}.{model}.{kind}"
        check_topic(name, part=model, what="model")
        return name


def check_topic(name: str, *, part: str, what: str) -> None:
    """Check that a topic's name is legal.

    Args:
        name: The whole name.
        part: What the user gave of it.
        what: What that is.

    Raises:
        ConfigError: It is not; the sentence has the rule.
    """
    if part and LEGAL.fullmatch(name) and len(name) <= MAX_TOPIC_CHARS:
        return
    hint = "; map the model onto topics of another name" if what == "model" else ""
    raise ConfigError(f"cannot be (part of) a topic's name: {RULE}{hint}", field=what, value=part)


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition of a key as Java, Go and aiokafka producers choose it (murmur2).

    Source: Apache Kafka, BuiltInPartitioner.partitionForKey.
    """
    hashed: int = murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions
