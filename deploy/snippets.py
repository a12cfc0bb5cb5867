"""Programs that ask one model, made from what it takes: `headrace topics schema MODEL --language …`. Pure.

Each runs as it is printed. Values are zeros and example texts: what they should be only the caller knows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.deploy.inputs import InputSpec
from headrace.schemas.errors import Unsupported
from headrace.schemas.tensor import Datatype

MAX_WRITTEN = 16
"""Elements that are written out; of more, the program makes them itself."""

PREFIX = "headrace"
"""The prefix of topics that a client assumes."""


class Language(StrEnum):
    """What a snippet is written in."""

    PYTHON = "python"
    JAVA = "java"
    KCAT = "kcat"
    CURL = "curl"


@dataclass(frozen=True, slots=True)
class Asked:
    """The model that a snippet asks.

    Attributes:
        model: Name.
        requests: Topic of its requests.
        results: Topic of its results.
        inputs: What it takes.
        bootstrap: ``host:port`` of brokers.
        prefix: Of Headrace's topics.
        is_sequence: Its requests are steps of sequences.
        is_decoupled: It gives 0..n responses.
        url: Of a gateway.
    """

    model: str
    requests: str
    results: str
    inputs: Sequence[InputSpec]
    bootstrap: str
    prefix: str = PREFIX
    is_sequence: bool = False
    is_decoupled: bool = False
    url: str = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class _Input:
    """One input as V2 JSON, but for its elements."""

    name: str
    head: str
    count: int
    element: str

    @property
    def is_written(self) -> bool:
        return self.count <= MAX_WRITTEN

    @property
    def elements(self) -> str:
        return ", ".join([self.element] * self.count)


def snippet(asked: Asked, language: Language) -> str:
    """Return a program that asks the model once, without a line end.

    Raises:
        Unsupported: The language writes JSON, and an input is of a datatype that JSON cannot hold (SEMANTICS PB-45).
    """
    return _MAKERS[language](asked)


def _shape(spec: InputSpec) -> list[int]:
    return [1 if size < 0 else size for size in spec.shape]


def _json_inputs(asked: Asked) -> list[_Input]:
    found = []
    for spec in asked.inputs:
        if spec.datatype in (Datatype.FP16, Datatype.BF16):
            raise Unsupported(
                f"input '{spec.name}' of model '{asked.model}' is {spec.datatype}, which JSON cannot hold, expected "
                f"--language {Language.PYTHON}"
            )
        shape = _shape(spec)
        head = f'"name": {json.dumps(spec.name)}, "datatype": "{spec.datatype}", "shape": {shape}, "data": '
        element = {Datatype.BYTES: '"example"', Datatype.BOOL: "false"}.get(spec.datatype, "0")
        found.append(_Input(spec.name, head, math.prod(shape), element))
    return found


def _shell_elements(item: _Input) -> str:
    if item.is_written:
        return item.elements
    return f"'$(yes '{item.element}' | head -n {item.count} | paste -sd ,)'"


def _shell_body(asked: Asked, more: str = "") -> str:
    inputs = ", ".join(f"{{{item.head}[{_shell_elements(item)}]}}" for item in _json_inputs(asked))
    return f'{{{more}"inputs": [{inputs}]}}'


def _quoted(text: str) -> str:
    """Return text in single quotes; what a shell is to make of it stands outside of them already."""
    return f"'{text}'"


def _curl(asked: Asked) -> str:
    base = f"{asked.url}/v2/models/{asked.model}"
    if asked.is_decoupled:
        fields = ", ".join(
            f"{json.dumps(item.name)}: [{_shell_elements(item)}]" for item in _json_inputs(asked)
        )
        return (
            "# One event for each response.\n"
            f"curl -sN {base}/generate_stream -d {_quoted('{' + fields + '}')}"
        )
    more = ""
    if asked.is_sequence:
        more = '"parameters": {"sequence_id": 42, "sequence_start": true, "sequence_end": true}, '
    return f"curl -s {base}/infer -d {_quoted(_shell_body(asked, more))}"


def _kcat(asked: Asked) -> str:
    sequence = ""
    if asked.is_sequence:
        sequence = " \\\n    -k 42 -H sequence-id=42 -H sequence-start=true -H sequence-end=true"
    return f"""\
# A key must hash as Java's does: librdkafka's own partitioner is another one.
since=$(date +%s%3N)
echo {_quoted(_shell_body(asked))} |
  kcat -b {asked.bootstrap} -P -t {asked.requests} -X partitioner=murmur2_random \\
    -H content-type=application/json -H id=example{sequence}
# The first result from then on; further ones come with a larger count.
kcat -b {asked.bootstrap} -C -q -t {asked.results} -o s@$since -c 1 -f '%h\\n%s\\n'"""


def _python(asked: Asked) -> str:
    prefix = "" if asked.prefix == PREFIX else f", prefix={json.dumps(asked.prefix)}"
    lines = []
    for spec in asked.inputs:
        name, shape = json.dumps(spec.name), _shape(spec)
        if spec.datatype is Datatype.BYTES:
            lines.append(f'    {name}: np.full({shape}, b"example", dtype=object),')
        else:
            kind = "uint16" if spec.datatype is Datatype.BF16 else spec.datatype.numpy.name
            lines.append(f"    {name}: np.zeros({shape}, np.{kind.replace('bool', 'bool_')}),")
    inputs = "\n".join(lines)
    if asked.is_sequence:
        steps = "stream" if asked.is_decoupled else "infer"
        body = f"    with client.sequence({json.dumps(asked.model)}) as steps:\n        " + (
            f"for answer in steps.{steps}(inputs, end=True):\n            print(dict(answer))"
            if asked.is_decoupled
            else "print(dict(steps.infer(inputs)))\n        print(dict(steps.infer(inputs, end=True)))"
        )
    elif asked.is_decoupled:
        body = (
            f"    for answer in client.stream({json.dumps(asked.model)}, inputs):\n"
            "        print(dict(answer))"
        )
    else:
        body = f"    print(dict(client.infer({json.dumps(asked.model)}, inputs)))"
    return f"""\
import numpy as np
from headrace.streams.client import SyncClient

inputs = {{
{inputs}
}}
with SyncClient({json.dumps(asked.bootstrap)}{prefix}) as client:
{body}"""


def _java(asked: Asked) -> str:
    def elements(item: _Input) -> str:
        if item.is_written:
            return json.dumps(item.elements)[1:-1]
        first = json.dumps(f"{item.element}, ")
        return f'" + {first}.repeat({item.count - 1}) + {json.dumps(item.element)} + "'

    inputs = ", ".join(
        f"{{{json.dumps(item.head)[1:-1]}[{elements(item)}]}}" for item in _json_inputs(asked)
    )
    key = '"42"' if asked.is_sequence else "null"
    sequence = "".join(
        f'\n            request.headers().add("{name}", "{value}".getBytes());'
        for name, value in (
            ("sequence-id", "42"),
            ("sequence-start", "true"),
            ("sequence-end", "true"),
        )
        if asked.is_sequence
    )
    return _JAVA % {
        "bootstrap": asked.bootstrap,
        "requests": asked.requests,
        "results": asked.results,
        "body": f'"{{\\"inputs\\": [{inputs}]}}"',
        "key": key,
        "sequence": sequence,
    }


_JAVA = """\
// Run it as it is, with kafka-clients on the class path: java -cp 'libs/*' Ask.java
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Ask {
    public static void main(String[] arguments) {
        Map<String, Object> kafka = Map.of("bootstrap.servers", "%(bootstrap)s");
        String body = %(body)s;
        try (var producer = new KafkaProducer<>(kafka, new StringSerializer(), new StringSerializer());
             var consumer = new KafkaConsumer<>(kafka, new StringDeserializer(), new StringDeserializer())) {
            // No group: this one reads the results from now on.
            List<TopicPartition> partitions = consumer.partitionsFor("%(results)s").stream()
                .map(found -> new TopicPartition(found.topic(), found.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            partitions.forEach(consumer::position);
            String id = UUID.randomUUID().toString();
            var request = new ProducerRecord<String, String>("%(requests)s", %(key)s, body);
            request.headers().add("content-type", "application/json".getBytes());
            request.headers().add("id", id.getBytes());%(sequence)s
            producer.send(request);
            producer.flush();
            while (true) {
                for (var result : consumer.poll(Duration.ofSeconds(1))) {
                    var named = result.headers().lastHeader("id");
                    if (named != null && id.equals(new String(named.value()))) {
                        System.out.println(new String(result.headers().lastHeader("status").value()));
                        System.out.println(result.value());
                        return;
                    }
                }
            }
        }
    }
}"""

_MAKERS: dict[Language, Callable[[Asked], str]] = {
    Language.PYTHON: _python,
    Language.JAVA: _java,
    Language.KCAT: _kcat,
    Language.CURL: _curl,
}
