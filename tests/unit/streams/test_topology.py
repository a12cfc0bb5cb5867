"""Topic names and settings of the record contract (DESIGN §4), and what may not be a topic's name."""

import pytest
from headrace.schemas.errors import ConfigError
from headrace.streams.topology import (
    MappedTopics,
    Topology,
    partition_for_key,
)


def test_names_and_settings_are_the_contract_s():
    """Other people's producers and consumers rely on each of these."""
    topology = Topology(prefix="p", partitions=6)
    requests, results = topology.model_specs("digits")
    assert (requests.name, results.name) == ("p.digits.requests", "p.digits.results")
    assert requests.partitions == results.partitions == 6
    assert requests.settings == {"message.timestamp.type": "LogAppendTime"}
    assert topology.group("digits") == "p.digits"
    shared = {spec.name: spec for spec in topology.shared_specs()}
    assert shared.keys() == {"p.replies", "p.cancels", "p.control", "p.status", "p.dead-letters"}
    assert shared[topology.status].settings == {"cleanup.policy": "compact"}
    assert shared[topology.control].settings == {"cleanup.policy": "compact"}
    assert int(shared[topology.replies].settings["retention.ms"]) <= 3_600_000
    assert shared[topology.cancels].partitions == 1


def test_an_existing_request_topic_decides_the_partition_count():
    """Results get as many partitions as requests have."""
    assert [s.partitions for s in Topology().model_specs("m", partitions=9)] == [9, 9]


def test_a_model_of_sequences_has_a_compacted_topic_of_its_state():
    """Co-partitioned with the requests; compaction leaves alone what a zombie may still write beside (P-4)."""
    topology = Topology(prefix="p", partitions=6, session_timeout_ms=6_000)
    *both, state = topology.model_specs("digits", stateful=True)
    assert tuple(both) == topology.model_specs("digits")
    assert (state.name, state.partitions) == (topology.state("digits"), 6)
    assert state.name == "p.digits.state"
    assert state.settings["cleanup.policy"] == "compact"
    assert int(state.settings["min.compaction.lag.ms"]) == 60_000
    assert (
        int(Topology().model_specs("m", stateful=True)[2].settings["min.compaction.lag.ms"])
        == 450_000
    )
    assert [s.partitions for s in topology.model_specs("m", partitions=9, stateful=True)] == [
        9
    ] * 3


def test_a_state_topic_of_another_name_is_internal_all_the_same():
    """No client may have answers written there (P-4: it belongs to one group), whatever the patterns say."""
    topology = Topology(mapped={"a b": MappedTopics("x", "y", "snapshots")}, reply_topics=("*",))
    assert topology.state("a b") == "snapshots"
    assert not topology.reply_allowed("snapshots")
    assert topology.reply_allowed("y")
    with pytest.raises(ConfigError, match="state topic of model m = s/c"):
        Topology(mapped={"m": MappedTopics(state="s/c")})
    with pytest.raises(ConfigError, match="session_timeout_ms = 0"):
        Topology(session_timeout_ms=0)


def test_a_mapped_model_uses_the_topics_it_is_mapped_onto():
    """Either name may be mapped, the other stays the usual one."""
    topology = Topology(mapped={"a b": MappedTopics("orders", "scores"), "m": MappedTopics("x")})
    assert (topology.requests("a b"), topology.results("a b")) == ("orders", "scores")
    assert (topology.requests("m"), topology.results("m")) == ("x", "headrace.m.results")


@pytest.mark.parametrize("model", ["a b", "größe", "a/b", "", "x" * 240])
def test_a_model_that_cannot_be_part_of_a_name_is_refused_with_the_rule(model):
    """Its load fails with the rule and what to do."""
    with pytest.raises(ConfigError, match=r"at most 249.*map the model"):
        Topology().requests(model)


def test_illegal_prefixes_counts_and_mapped_names_are_refused():
    """At start, naming the value."""
    with pytest.raises(ConfigError, match="prefix = a b"):
        Topology(prefix="a b")
    with pytest.raises(ConfigError, match="prefix"):
        Topology(prefix="")
    with pytest.raises(ConfigError, match="results topic of model m = s/c"):
        Topology(mapped={"m": MappedTopics("", "s/c")})
    with pytest.raises(ConfigError, match="partitions = 0"):
        Topology(partitions=0)


@pytest.mark.parametrize(
    ("topic", "allowed"),
    [
        ("headrace.replies", True),
        ("headrace.m.results", True),
        ("headrace.my-own", True),
        ("scores", True),
        ("headrace.status", False),
        ("headrace.control", False),
        ("headrace.cancels", False),
        ("headrace.dead-letters", False),
        ("headrace.m.state", False),
        ("elsewhere", False),
        ("headrace.", True),
        ("headrace.ä", False),
        ("", False),
    ],
)
def test_replies_go_only_where_the_default_allows(topic, allowed):
    """Everything under the prefix and the mapped topics, but nothing that Headrace itself reads."""
    assert Topology(mapped={"m": MappedTopics("", "scores")}).reply_allowed(topic) is allowed


def test_patterns_replace_the_default_for_replies():
    """An operator's patterns stand alone, and still never reach internal topics."""
    topology = Topology(reply_topics=("team-?.*", "headrace.*"))
    assert topology.reply_allowed("team-a.answers")
    assert not topology.reply_allowed("team-ab.answers")
    assert not topology.reply_allowed("headrace.status")


def test_keys_go_where_java_s_producer_sends_them():
    """Values of Kafka's own UtilsTest.testMurmur2, as partitions of 2**31."""
    assert partition_for_key(b"21", 2**31) == -973932308 & 0x7FFFFFFF
    assert partition_for_key(b"foobar", 2**31) == -790332482 & 0x7FFFFFFF
    assert partition_for_key(b"a-little-bit-long-string", 2**31) == -985981536 & 0x7FFFFFFF


def test_a_requests_topic_of_another_name_is_somebody_elses() -> None:
    """It is not made, and its settings are its owner's; the results beside it are ours."""
    topology = Topology(mapped={"m": MappedTopics(requests="payments", results="scored")})
    assert [spec.name for spec in topology.model_specs("m", partitions=3, stateful=True)] == [
        "scored",
        "headrace.m.state",
    ]
    only_results = Topology(mapped={"m": MappedTopics(results="scored")})
    names = [spec.name for spec in only_results.model_specs("m")]
    assert names == ["headrace.m.requests", "scored"]
