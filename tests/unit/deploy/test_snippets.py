"""Programs that ask a model: for each kind of model and datatype, and texts that their languages take."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess

import pytest
from headrace.deploy.contract_words import REQUEST_HEADERS, RESULT_HEADERS
from headrace.deploy.inputs import InputSpec
from headrace.deploy.snippets import MAX_WRITTEN, Asked, Language, snippet
from headrace.schemas import record, v2json
from headrace.schemas.errors import Unsupported
from headrace.schemas.tensor import Datatype

JSON_TYPES = [d for d in Datatype if d not in (Datatype.FP16, Datatype.BF16)]
NOT_HEADERS = {"AVRO", "JSON", "BINARY", "PROTOBUF", "OPAQUE_PREFIX"}


def asked(*inputs: InputSpec, **more: object) -> Asked:
    given = inputs or (InputSpec("x", Datatype.FP32, (-1, 4)),)
    return Asked("m", "p.m.requests", "p.m.results", given, "127.0.0.1:9092", **more)


def body_of(program: str) -> bytes:
    """Run a shell program whose commands only print what they were given, and return what it would send."""
    fakes = 'kcat() { cat; }; curl() { for last; do :; done; printf "%s" "$last"; }\n'
    done = subprocess.run(
        ["bash", "-c", fakes + program], capture_output=True, check=True, input=b"", timeout=30
    )
    return done.stdout


@pytest.mark.parametrize("language", [Language.CURL, Language.KCAT])
@pytest.mark.parametrize("count", [3, MAX_WRITTEN + 1])
def test_a_shell_s_body_is_a_request_of_any_datatype_and_size(language, count):
    specs = [InputSpec(f"in {d}", d, (-1, count)) for d in JSON_TYPES]
    request = v2json.parse_request(body_of(snippet(asked(*specs), language)).strip(), None)
    assert [(t.name, t.datatype, t.shape) for t in request.inputs] == [
        (spec.name, spec.datatype, (1, count)) for spec in specs
    ]
    for tensor in request.inputs:
        tensor.check()


@pytest.mark.parametrize("language", [Language.JAVA, Language.KCAT, Language.CURL])
@pytest.mark.parametrize("datatype", [Datatype.FP16, Datatype.BF16])
def test_PB45_what_json_cannot_hold_is_said(language, datatype):
    with pytest.raises(Unsupported, match=f"input 'x' of model 'm' is {datatype}"):
        snippet(asked(InputSpec("x", datatype, (1,))), language)


@pytest.mark.parametrize("is_sequence", [False, True])
@pytest.mark.parametrize("is_decoupled", [False, True])
def test_python_makes_arrays_of_any_datatype(is_sequence, is_decoupled):
    specs = [InputSpec(f"in {d}", d, (-1, 2)) for d in Datatype]
    program = snippet(
        asked(*specs, prefix="other", is_sequence=is_sequence, is_decoupled=is_decoupled),
        Language.PYTHON,
    )
    ast.parse(program)
    scope: dict[str, object] = {}
    exec(program[: program.index("with SyncClient")], scope)
    arrays = scope["inputs"]
    for spec in specs:
        array = arrays[spec.name]
        assert array.shape == (1, 2)
        assert array.dtype == spec.datatype.numpy
    assert 'SyncClient("127.0.0.1:9092", prefix="other")' in program
    assert ("client.sequence(" in program) is is_sequence
    assert (".stream(" in program) is is_decoupled


def test_java_s_text_holds_the_request_and_its_key():
    program = snippet(asked(is_sequence=True), Language.JAVA)
    (line,) = [line for line in program.splitlines() if "String body" in line]
    text = json.loads(line[line.index('"') : line.rindex('"') + 1])
    assert v2json.parse_request(text.encode(), None).inputs[0].shape == (1, 4)
    assert 'new ProducerRecord<String, String>("p.m.requests", "42", body)' in program
    assert program.count("sequence-") == 3
    long = snippet(asked(InputSpec("x", Datatype.FP32, (-1, 1000))), Language.JAVA)
    assert '"0, ".repeat(999) + "0"' in long


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_decoupled_model_is_asked_for_a_stream_of_events():
    program = snippet(asked(is_decoupled=True), Language.CURL)
    assert "curl -sN http://127.0.0.1:8000/v2/models/m/generate_stream -d" in program
    assert json.loads(body_of(program)) == {"x": [0, 0, 0, 0]}


def test_every_header_of_the_contract_is_explained():
    names = {
        value
        for name, value in vars(record).items()
        if name.isupper() and isinstance(value, str) and name not in NOT_HEADERS
    }
    assert names <= REQUEST_HEADERS.keys() | RESULT_HEADERS.keys()
