"""The audit on a memory log: it finds exactly what was planted there, with coordinates, and tells loss from waiting."""

import pytest
from audit_kit import (
    REQUESTS,
    RESULTS,
    TOPOLOGY,
    answer,
    at,
    audit,
    found,
    make_topics,
    request,
    value_of,
)
from headrace.consumers.ledger import encode_metadata
from headrace.schemas.claim_check import claim_for, write_claim
from headrace.schemas.dead_letter import SOURCE as DEAD_LETTER_SOURCE
from headrace.schemas.errors import LogError
from headrace.schemas.record import TP, Out
from headrace.streams.audit_range import AuditRange
from headrace.streams.audit_report import Kind, Verdict
from headrace.streams.log import Mode, Position, TopicSpec
from headrace.streams.memory import MemoryLog

ALO, EOS = Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE


class Clock:
    """Milliseconds that a test sets."""

    ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock_ms():
    return Clock()


@pytest.fixture
async def log(clock_ms):
    """A log with the model's topics."""
    async with MemoryLog(clock_ms=clock_ms) as log:
        await make_topics(log)
        yield log


@pytest.fixture
def served(log):
    """Ten requests in each partition, all answered."""
    for partition in (0, 1):
        log.append([request(partition)] * 10)
        log.append([answer(at(partition, offset)) for offset in range(10)])
    return log


def commit(log, partition, offset, lengths=()):
    """Commit by hand what the model's group has finished."""
    metadata = encode_metadata(lengths, max_bits=1000)
    group = log._group(TOPOLOGY.group("echo"))
    log.commit(group, {TP(REQUESTS, partition): Position(offset, metadata)})


async def test_answered_once_each_is_clean(served):
    report = await audit(served)
    assert found(report) == {}
    assert report.total.requests == report.total.answered == 20
    assert [(p.partition, p.start, p.end) for p in report.models[0].partitions] == [
        (0, 0, 10),
        (1, 0, 10),
    ]
    assert report.verdict(ALO) is report.verdict(EOS) is Verdict.CLEAN


async def test_an_empty_log_is_clean(log):
    report = await audit(log)
    assert report.total.requests == 0
    assert report.verdict(EOS) is Verdict.CLEAN


async def test_B13_a_planted_loss_is_found_in_its_partition(log):
    log.append([request(1, id="a"), request(1, id="b"), request(1, id="c")])
    log.append([answer(at(1, 0)), answer(at(1, 2))])
    report = await audit(log)
    assert found(report) == {"missing": 1}
    assert report.models[0].partitions[1].counts.missing == 1
    (example,) = report.models[0].examples
    assert (example.kind, example.source) == (Kind.MISSING, at(1, 1))
    assert example.detail == (
        f"nothing instead of an answer in '{RESULTS}'/1; it came at 1970-01-01T00:16:40.000+00:00 "
        "with id b'b'"
    )
    assert report.verdict(ALO) is report.verdict(EOS) is Verdict.FINDINGS


@pytest.mark.parametrize(
    ("second", "counted", "kind"),
    [
        ({}, "duplicated_equal", Kind.REPEATED),
        ({"value": value_of((1.000001, 2.0)), "attempt": 2}, "duplicated_equal", Kind.REPEATED),
        ({"value": value_of((1.001, 2.0))}, "duplicated_different", Kind.DUPLICATED),
        ({"status": "INTERNAL"}, "duplicated_different", Kind.DUPLICATED),
    ],
    ids=["bytes", "rounding", "value", "status"],
)
async def test_P16_a_planted_duplicate_is_found_and_compared(served, second, counted, kind):
    served.append([answer(at(0, 3), **second)])
    report = await audit(served)
    counts = found(report)
    assert counts.pop("retried", 0) == ("attempt" in second)
    assert counts == {counted: 1}
    (example,) = report.models[0].examples
    assert (example.kind, example.source) == (kind, at(0, 3))
    assert example.answers == (f"{RESULTS}/0/3", f"{RESULTS}/0/10")
    equal = kind is Kind.REPEATED
    assert report.verdict(ALO) is (Verdict.CLEAN if equal else Verdict.FINDINGS)
    assert report.verdict(EOS) is Verdict.FINDINGS


async def test_P16_repeats_in_the_claim_check_store_are_equal_by_digest_or_not_compared(served):
    """The audit does not ask the store: other bytes may be the same floats but for their rounding."""

    def claimed(offset, name, value):
        out = answer(at(0, offset), value=b"")
        claim = write_claim(claim_for(f"s3://bucket/{name}", value))
        out.headers = [*out.headers, ("claim-check", claim)]
        return out

    other = value_of((1.000001, 2.0))
    served.append([claimed(3, "a", value_of())])  # beside the same value in its record
    served.append([claimed(4, "b", other), claimed(4, "c", other)])
    report = await audit(served)
    assert found(report) == {"duplicated_equal": 1, "duplicated_unknown": 2}
    examples = [(e.kind, e.source, e.detail) for e in report.models[0].examples]
    apart = "their values are in the claim-check store, and their digests differ"
    assert examples == [
        (Kind.REPEATED, at(0, 3), "equal"),
        (Kind.UNCOMPARED, at(0, 4), apart),
        (Kind.UNCOMPARED, at(0, 4), apart),
    ]
    assert report.verdict(ALO) is Verdict.UNSURE
    assert report.verdict(EOS) is Verdict.FINDINGS


async def test_an_answer_that_lies_twice_in_different_topics_is_a_duplicate(log):
    log.append([request(0, reply=(TOPOLOGY.replies, 1))])
    log.append([answer(at(0, 0), to=(TOPOLOGY.replies, 1)), answer(at(0, 0))])
    assert found(await audit(log)) == {"duplicated_equal": 1}


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        (at(0, 10), "there is no such request"),
        (at(1, 999_999), "there is no such request"),
        (f"{REQUESTS}/7/0", "there is no such partition"),
        ("t.gone.requests/0/0", "there is no such partition"),
        (f"{REQUESTS}/{'9' * 5000}/0", "there is no such partition"),
        ("nonsense", "header 'source' names no request that can be read"),
        (f"{REQUESTS}/0/-1", "header 'source' names no request that can be read"),
    ],
    ids=["next", "far", "partition", "topic", "digits", "nonsense", "negative"],
)
async def test_a_planted_orphan_is_found(served, source, detail):
    served.append([answer(source)])
    report = await audit(served)
    assert found(report) == {"orphaned": 1}
    (example,) = report.models[0].examples
    assert (example.kind, example.detail) == (Kind.ORPHANED, detail)
    assert example.source == source[:300]
    assert example.answers[0].startswith(RESULTS)


async def test_B24_an_answer_to_a_hole_is_an_orphan_and_a_hole_is_no_request(log):
    log.append([request(0)])
    log.existing(TP(REQUESTS, 0)).hole(2)
    log.append([request(0)])
    log.append([answer(at(0, offset)) for offset in (0, 2, 3)])
    report = await audit(log)
    assert found(report) == {"orphaned": 1}
    assert report.total.requests == 2


async def test_P1_what_is_unfinished_is_pending_and_what_F_holds_is_not(log):
    """Committed is 2, and 4 is finished above it: 1 and 4 are lost, 2, 3 and 5 are still to come."""
    log.append([request(0)] * 6)
    log.append([answer(at(0, 0))])
    commit(log, 0, 2, (2, 1))
    report = await audit(log, committed=True)
    assert found(report) == {"missing": 2, "pending": 3}
    assert [example.source for example in report.models[0].examples] == [at(0, 1), at(0, 4)]


async def test_without_a_commit_everything_is_pending(log):
    log.append([request(0)] * 3)
    report = await audit(log, committed=True)
    assert found(report) == {"pending": 3}
    assert report.verdict(EOS) is Verdict.CLEAN


async def test_metadata_of_another_program_finishes_nothing_above_the_offset(log):
    log.append([request(0)] * 3)
    log.commit(
        log._group(TOPOLOGY.group("echo")), {TP(REQUESTS, 0): Position(1, "somebody else's")}
    )
    assert found(await audit(log, committed=True)) == {"missing": 1, "pending": 2}


async def test_P13_a_reply_is_an_answer_and_a_missing_one_is_counted_apart(log):
    """A gateway that died has read nothing, and the answer is there all the same."""
    log.append([request(0, reply=(TOPOLOGY.replies, 1))] * 2)
    log.append([answer(at(0, 0), to=(TOPOLOGY.replies, 1))])
    report = await audit(log)
    assert found(report) == {"missing_replies": 1}
    assert report.verdict(ALO) is Verdict.FINDINGS
    assert report.verdict(EOS) is Verdict.CLEAN


async def test_a_topic_that_a_request_names_is_read(log):
    await log.ensure([TopicSpec("t.mine", 3)])
    log.append([request(0, reply=("t.mine", 2)), request(1, reply=("t.mine", -1))])
    log.append([answer(at(0, 0), to=("t.mine", 2)), Out("t.mine", 0, None, b"mine", [])])
    report = await audit(log)
    assert found(report) == {"missing": 1}
    assert "'t.mine'/1" in report.models[0].examples[0].detail
    assert report.foreign == 1


@pytest.mark.parametrize("topic", ["t.nowhere", "other"])
async def test_an_answer_that_was_due_where_nobody_looks_is_unknown(log, topic):
    await log.ensure([TopicSpec("other", 1)])
    log.append([request(0, reply=(topic, 0))])
    report = await audit(log)
    assert found(report) == {"unknown": 1}
    assert report.models[0].examples[0].kind is Kind.UNKNOWN
    assert report.verdict(ALO) is Verdict.UNSURE


async def test_B37_a_refused_reply_topic_is_answered_in_the_results(log):
    log.append([request(0, reply=("t.nowhere", 0)), request(0, reply=(TOPOLOGY.replies, 99))])
    log.append([answer(at(0, 0), status="INVALID_ARG")])
    report = await audit(log)
    assert found(report) == {"missing": 1}  # the second one's partition never was
    assert f"'{RESULTS}'/0" in report.models[0].examples[0].detail


async def test_answers_that_retention_deleted_are_unknown_and_newer_losses_are_found(
    log, clock_ms
):
    log.append([request(0)] * 3)
    log.append([answer(at(0, offset)) for offset in range(3)])
    clock_ms.ms += 100_000
    log.append([request(0)] * 2)
    log.append([answer(at(0, 3))])
    log.existing(TP(RESULTS, 0)).trim(2)
    report = await audit(log)
    assert found(report) == {"unknown": 2, "missing": 1}
    assert "deleted" in report.models[0].examples[-1].detail


async def test_a_results_topic_that_retention_emptied_tells_nothing(served):
    served.existing(TP(RESULTS, 0)).trim(10)
    assert found(await audit(served)) == {"unknown": 10}


async def test_answers_to_deleted_requests_are_no_orphans(served):
    served.existing(TP(REQUESTS, 0)).trim(6)
    report = await audit(served)
    assert found(report) == {}
    assert report.total.requests == 14


async def test_requests_that_are_deleted_during_the_audit_are_no_loss(served):
    """Retention comes while they are read; of those that are left one answer has been deleted, too."""

    class Trimming(type(served)):
        readers = 0

        def reader(self, spans, **more):
            self.readers += 1
            if self.readers == 4:  # the first two told the range, the third has read it
                self.existing(TP(REQUESTS, 0)).trim(4)
            return super().reader(spans, **more)

    served.existing(TP(RESULTS, 0)).trim(5)
    served.__class__ = Trimming
    report = await audit(served)
    assert report.total.requests == 16
    assert found(report) == {"unknown": 1}
    (note,) = report.notes
    assert note == f"{REQUESTS}/0: requests below 4 were deleted while they were audited"


async def test_traffic_during_the_audit_is_no_orphan_and_no_loss(served):
    """A request and its answer come after the end of the requests was taken, and one more request."""

    class Busy(type(served)):
        turns = 0

        async def topics(self):
            self.turns += 1
            if self.turns == 2:  # the requests are read, the ends of answers are not taken
                self.append([request(0), request(0), answer(at(0, 10))])
            return await super().topics()

    served.__class__ = Busy
    report = await audit(served, committed=True)
    assert served.turns == 2
    assert found(report) == {}


async def test_a_range_of_offsets_counts_only_that(served):
    served.append([request(0), request(0), answer(at(0, 11)), answer(at(0, 11)), answer(at(1, 3))])
    span = AuditRange(offsets={TP(REQUESTS, 0): (2, 11)})
    report = await audit(served, "echo", span=span)
    assert found(report) == {"missing": 1}
    assert [p.partition for p in report.models[0].partitions] == [0]
    assert report.total.requests == 9


async def test_a_range_of_timestamps_begins_and_ends_there(log, clock_ms):
    for partition in (0, 1):
        for step in range(20):
            clock_ms.ms = 1_000_000 + 100_000 * step + partition
            log.append([request(partition)])
            if step % 5:
                log.append([answer(at(partition, step))])
    span = AuditRange(since_ms=1_500_001, until_ms=2_100_000)
    report = await audit(log, span=span)
    assert [(p.start, p.end) for p in report.models[0].partitions] == [(6, 11), (5, 11)]
    assert found(report) == {"missing": 3}
    whole = await audit(log)
    assert found(whole) == {"missing": 8}


async def test_an_answer_whose_machine_is_behind_is_found(log, clock_ms):
    """Its timestamp is before its request's, within the skew that is allowed."""
    log.append([answer("t.gone.requests/0/0")] * 50)
    clock_ms.ms += 1_000_000
    log.append([answer(at(0, 1))])
    clock_ms.ms += 30_000
    log.append([request(0)] * 2)
    span = AuditRange(since_ms=clock_ms.ms)
    assert found(await audit(log, span=span)) == {"missing": 1}


async def test_dead_letters_are_counted_and_never_stand_for_an_answer(log):
    def letter(source):
        return Out(TOPOLOGY.dead_letters, 0, None, b"", [(DEAD_LETTER_SOURCE, source.encode())])

    log.append([request(0)] * 2)
    log.append([answer(at(0, 0), status="INVALID_ARG"), letter(at(0, 0)), letter(at(0, 0))])
    log.append([letter(at(0, 1)), letter(at(0, 77)), letter("t.other.requests/0/0")])
    report = await audit(log)
    assert found(report) == {
        "missing": 1,
        "orphaned": 1,
        "dead_letters": 2,
        "dead_letters_repeated": 1,
    }
    missing = next(e for e in report.models[0].examples if e.kind is Kind.MISSING)
    assert missing.detail.startswith("a dead letter instead of an answer")
    repeated = next(e for e in report.models[0].examples if e.kind is Kind.REPEATED)
    assert (repeated.source, repeated.detail) == (at(0, 0), "another dead letter of the request")
    assert repeated.answers == (f"{TOPOLOGY.dead_letters}/0/1",)


async def test_DC01_responses_of_a_decoupled_model_are_one_answer(log):
    log.append([request(0)] * 5)
    log.append([answer(at(0, 0), index=i, final=i == 2) for i in range(3)])
    log.append([answer(at(0, 1), index=0, value=b"")])
    log.append([answer(at(0, 2), index=0, final=False), answer(at(0, 2), status="INTERNAL")])
    log.append([answer(at(0, 3), index=0, final=False)])
    log.append([answer(at(0, 4), index=i, final=i == 2) for i in (0, 2)])
    report = await audit(log)
    assert found(report) == {"missing": 2}
    assert [e.detail.split(" in ")[0] for e in report.models[0].examples] == [
        "1 response and no final one",
        "response 1 of 0 to 2 is missing",
    ]


async def test_P16_repeated_responses_are_compared_one_by_one(log):
    log.append([request(0)])
    log.append([answer(at(0, 0), index=i, final=False) for i in range(2)])
    log.append([answer(at(0, 0), index=0, final=False), answer(at(0, 0), index=1, value=b"x")])
    log.append([answer(at(0, 0), index=2)])
    report = await audit(log)
    # 1 is the final one the second time, and behind it nothing may come.
    assert found(report) == {"duplicated_equal": 1, "duplicated_different": 2}


async def test_only_the_models_that_are_named_are_audited(log):
    await make_topics(log, "echo", "other")
    other = TOPOLOGY.requests("other")
    log.append([request(0, reply=(TOPOLOGY.replies, 0)), Out(other, 0, None, b"", [])])
    log.append([answer(at(0, 0), to=(TOPOLOGY.replies, 0))])
    log.append([answer(f"{other}/0/0", to=(TOPOLOGY.replies, 0))])
    report = await audit(log, "echo")
    assert (found(report), report.foreign) == ({}, 1)
    both = await audit(log)
    assert (found(both), both.foreign) == ({}, 0)
    assert [model.model for model in both.models] == ["echo", "other"]


async def test_the_answer_of_another_model_in_the_results_is_no_orphan(log):
    """A request may name the results of another model as its reply topic."""
    await make_topics(log, "echo", "other")
    other = TOPOLOGY.requests("other")
    log.append([Out(other, 0, None, b"", [("reply-topic", RESULTS.encode())])])
    log.append([answer(f"{other}/0/0", to=(RESULTS, 0))])
    assert found(await audit(log)) == {}
    assert found(await audit(log, "echo")) == {}


async def test_R8_fewer_results_partitions_than_requests_lose_nothing():
    async with MemoryLog() as log:
        await log.ensure([TopicSpec(REQUESTS, 3), TopicSpec(RESULTS, 1)])
        log.append([request(2), answer(at(2, 0), to=(RESULTS, 0)), request(1)])
        report = await audit(log)
    assert found(report) == {"missing": 1}
    assert f"'{RESULTS}'/0" in report.models[0].examples[0].detail


async def test_counts_are_exact_and_examples_bounded(log):
    log.append([request(0)] * 500)
    report = await audit(log, max_examples=3)
    assert found(report) == {"missing": 500}
    assert [e.source for e in report.models[0].examples] == [at(0, o) for o in range(3)]


async def test_repeats_that_do_not_fit_are_compared_in_further_readings(served):
    """Room for one answer at a time: one reading each, since copies lie far apart."""
    values = [value_of((float(offset), 0.0)) for offset in range(4)]
    served.append([request(0)] * 4)
    for _ in range(2):
        served.append([answer(at(0, 10 + k), value=v) for k, v in enumerate(values)])
    report = await audit(served, max_compare_bytes=1)
    assert found(report) == {"duplicated_equal": 4}
    fewer = await audit(served, max_compare_bytes=1, max_compare_rounds=3)
    assert found(fewer) == {"duplicated_equal": 3, "duplicated_unknown": 1}
    assert fewer.verdict(ALO) is Verdict.UNSURE
    assert fewer.verdict(EOS) is Verdict.FINDINGS


async def test_B100_a_range_that_is_too_long_for_the_memory_is_a_sentence(served):
    with pytest.raises(LogError, match="more than 0 MiB of memory, expected one with fewer"):
        await audit(served, max_memory_bytes=100_000)


async def test_too_many_reply_topics_are_said(log):
    names = [f"t.mine-{i}" for i in range(3)]
    await log.ensure([TopicSpec(name, 1) for name in names])
    log.append([request(0, reply=(name, 0)) for name in names])
    log.append([answer(at(0, i), to=(name, 0)) for i, name in enumerate(names)])
    report = await audit(log, max_reply_topics=2)
    assert found(report) == {"unknown": 1}
    assert report.notes == ("requests name more than 2 reply topics, others are not read",)


@pytest.mark.parametrize(
    ("models", "span", "sentence"),
    [
        (["eko"], {}, "topic t.eko.requests of model 'eko' does not exist"),
        (["echo"], {"offsets": {TP(REQUESTS, 9): (0, 1)}}, f"{REQUESTS}/9 does not exist"),
    ],
    ids=["model", "partition"],
)
async def test_what_is_not_there_is_a_sentence(log, models, span, sentence):
    with pytest.raises(LogError, match=sentence):
        await audit(log, *models, span=AuditRange(**span))


async def test_a_log_without_models_is_a_sentence():
    async with MemoryLog() as log:
        with pytest.raises(LogError, match=r"there is no topic t\.<model>\.requests to audit"):
            await audit(log)


async def test_a_results_topic_that_is_missing_is_a_sentence(log):
    log.delete(RESULTS)
    with pytest.raises(LogError, match=r"topic t\.echo\.results of model 'echo' does not exist"):
        await audit(log)
