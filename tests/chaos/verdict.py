"""What came of a fault: the auditor's counts, and every step of a sequence against the undisturbed run.

What an undisturbed run answers follows from the requests as they lie in the log: `sequence_oracle` folds each sequence
of a partition in the order of its offsets. The scene without a fault shows that it is so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.load import Outcome
from chaos.scene import Scene
from fault_kit import Answer
from headrace.deploy.commands_audit import kafka_progress
from headrace.schemas.headers import find_header
from headrace.schemas.record import ID, TP, Record
from headrace.schemas.sequence import sequence_key
from headrace.streams.audit import Auditor, AuditSettings
from headrace.streams.audit_report import AuditReport, Kind
from headrace.streams.kafka_properties import translate
from headrace.streams.log import Mode, Span
from sequence_kit import Step
from sequence_oracle import Asked, Due, Oracle

IDLE_MS = 600_000
"""Longest silence of a sequence in the model of `sequence_kit.write_folds`."""
MAX_EXAMPLES = 1000
"""Findings of a kind that are known by their coordinates."""
MAX_SHOWN = 5
"""Of them, those of a stretch that are shown."""


@dataclass
class Figures:
    """What came of one fault.

    Attributes:
        fault: Its name.
        mode: The delivery guarantee.
        times: How often it was injected.
        requests: Accepted ones, of records and calls.
        lost: Finished without an answer, or unfinished when the service had been left alone.
        lost_replies: Calls whose reply was never written; exactly_once allows it (DELIVERY P-13).
        duplicated: Surplus answers.
        different: Those of them with another value, or that could not be compared.
        orphaned: Answers to nothing.
        dead: Dead letters; nothing that is sent deserves one.
        wrong: Steps that were answered otherwise than undisturbed, and stateless requests with a wrong value.
        disordered: Steps whose first answer came before that of an earlier step of their sequence (P-18).
        failed: Records that the customer's producer gave up.
        calls: Outcome → calls of the gateway.
        stall_s: Longest time that some partition of results stood still under load, seconds.
        examples: Sentences about what is wrong.
        failure: Why it was not played to its end; ``""`` if it was.
    """

    fault: str
    mode: Mode
    times: int = 0
    requests: int = 0
    lost: int = 0
    lost_replies: int = 0
    duplicated: int = 0
    different: int = 0
    orphaned: int = 0
    dead: int = 0
    wrong: int = 0
    disordered: int = 0
    failed: int = 0
    calls: Mapping[str, int] = field(default_factory=dict)
    stall_s: float = 0.0
    examples: Sequence[str] = ()
    failure: str = ""

    def broken(self) -> list[str]:
        """Return which promises are broken: nothing where all is well."""
        bad_calls = set(self.calls) - {
            Outcome.ANSWERED,
            Outcome.TIMED_OUT,
            Outcome.REFUSED,
            Outcome.CUT,
        }
        exactly_once = self.mode is Mode.EXACTLY_ONCE
        found = {
            "lost": self.lost,
            "lost replies": 0 if exactly_once else self.lost_replies,
            "duplicated": self.duplicated if exactly_once else self.different,
            "orphaned": self.orphaned,
            "dead letters": self.dead,
            "wrong": self.wrong,
            "out of order": self.disordered,
            "calls": sum(self.calls[outcome] for outcome in bad_calls),
        }
        failed = [self.failure] if self.failure else []
        return failed + [f"{count} {name}" for name, count in found.items() if count]


class Judge:
    """Judges one stretch of a scene after the other.

    All that there is is audited each time, so that what turns up late counts where it turns up.
    """

    def __init__(self, scene: Scene) -> None:
        """Begin with nothing counted."""
        self._scene = scene
        self._begin: dict[TP, int] = {}
        self._oracles: dict[TP, Oracle] = {}
        self._counted: Counter[str] = Counter()
        self._shown: set[str] = set()
        self._calls: Counter[str] = Counter()

    async def judge(self, fault: str, *, begin_s: float, end_s: float) -> Figures:
        """Judge what happened since the last time; ``begin_s`` to ``end_s`` is the load's time on the loop's clock."""
        scene = self._scene
        report = await self._audit()
        now = _counts(report)
        now["failed"] = scene.load.failed
        figures = Figures(
            fault, scene.mode, **{name: now[name] - self._counted[name] for name in now}
        )
        examples = [text for text in _examples(report) if text not in self._shown]
        figures.examples = examples[:MAX_SHOWN]
        self._counted, self._shown = now, self._shown | set(examples)
        figures.calls = scene.load.calls - self._calls
        self._calls = scene.load.calls.copy()
        ends = await scene.ends()
        await self._compare(figures, {tp: (self._begin.get(tp, 0), ends[tp]) for tp in ends})
        self._begin = ends
        stalls, results = scene.tap.stalls(begin_s, end_s), scene.results()
        figures.stall_s = max((s for tp, s in stalls.items() if tp.topic in results), default=0.0)
        return figures

    async def _audit(self) -> AuditReport:
        scene = self._scene
        auditor = Auditor(
            scene.log,
            scene.topology,
            AuditSettings(committed=scene.mode is Mode.EXACTLY_ONCE, max_examples=MAX_EXAMPLES),
            progress=kafka_progress(translate(scene.properties)),
        )
        return await auditor.audit(scene.models)

    async def _compare(self, figures: Figures, spans: Mapping[TP, tuple[int, int]]) -> None:
        """Compare each answer with what an undisturbed run gives."""
        wrong: list[str] = []
        newest: dict[tuple[TP, bytes], int] = {}
        order = {source: number for number, source in enumerate(self._scene.tap.answers)}
        for record in await self._read(spans):
            tp = TP(record.topic, record.partition)
            source = f"{tp.topic}/{tp.partition}/{record.offset}"
            name = (find_header(record.headers, ID) or b"").decode()
            step = self._scene.load.steps.get(name)
            answers = self._scene.tap.answers.get(source, [])
            if step is not None:
                due = self._due(tp, step, record.timestamp)
                place = (tp, sequence_key(step.sequence_id))
                at = order.get(source, newest.get(place, -1))
                figures.disordered += at < newest.get(place, -1)
                newest[place] = at
            elif name in self._scene.load.rows:
                due = Answer("OK", "", (self._scene.load.rows[name],))
            else:
                continue  # a call: its caller compares
            if bad := [answer for answer in answers if answer != due]:
                figures.wrong += 1
                wrong.append(f"{source} {step or ''}: {bad[0]}, expected {due}")
        figures.examples = [*figures.examples, *wrong[:MAX_SHOWN]]

    def _due(self, tp: TP, step: Step, timestamp_ms: int) -> Answer:
        oracle = self._oracles.setdefault(tp, Oracle(IDLE_MS))
        asked = Asked(
            step.sequence_id, step.value, timestamp_ms, step.start, step.end, version=step.version
        )
        due: Due = oracle.next(asked)
        assert due.reason is None, f"the load stepped a sequence that is not: {step}"
        return Answer("OK", "", (due.value,))

    async def _read(self, spans: Mapping[TP, tuple[int, int]]) -> list[Record]:
        found: list[Record] = []
        wanted = {tp: Span(start, end) for tp, (start, end) in spans.items() if start < end}
        async with self._scene.log.reader(wanted) as reader:
            while not reader.done():
                for block in await reader.poll(5000, 1.0):
                    found += block.records
        return sorted(found, key=lambda record: (record.topic, record.partition, record.offset))


def _counts(report: AuditReport) -> Counter[str]:
    total = report.total
    return Counter(
        requests=total.requests,
        lost=total.missing + total.unknown + total.pending,
        lost_replies=total.missing_replies,
        duplicated=total.duplicated,
        different=total.duplicated_different + total.duplicated_unknown,
        orphaned=total.orphaned,
        dead=total.dead_letters,
    )


def _examples(report: AuditReport) -> list[str]:
    return [
        f"{example.kind}: {example.source} {example.detail} {', '.join(example.answers)}"
        for model in report.models
        for example in model.examples
        if example.kind is not Kind.REPEATED
    ]
