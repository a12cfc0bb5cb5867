"""Mapping files: what they say, and that whatever is wrong is refused with its name and the nearest one."""

import pytest
from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping import NO_DEFAULT, Condition, Field, PassedField
from headrace.schemas.mapping_file import read_mapping
from headrace.schemas.mapping_path import find, getter, optional, parse_path, shown
from headrace.schemas.tensor import Datatype
from mapping_kit import FIELDS, SOURCE, mapped

INPUT = SOURCE + "[inputs.x]\n"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("a", ("a",)),
        ("a.b.c", ("a", "b", "c")),
        ("items[0].price", ("items", 0, "price")),
        ("grid[1][2]", ("grid", 1, 2)),
        ('meta["odd.name"].x', ("meta", "odd.name", "x")),
        (r'["say \"hi\""]', None),
        (r'm["say \"hi\""]', ("m", 'say "hi"')),
        ("Größe", ("Größe",)),
    ],
)
def test_a_path_says_where_a_field_is(text, steps):
    if steps is None:
        assert parse_path(text).steps == ('say "hi"',)
    else:
        assert parse_path(text).steps == steps


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "[0]",
        "a[",
        "a[x]",
        "a[-1]",
        "a]b",
        "a.[0]",
        'a["b"',
        "a[0]b",
        " ",
        "a" + "[0]" * 40,
    ],
)
def test_what_is_no_path_is_refused(text):
    with pytest.raises(ValueError, match="names with dots between"):
        parse_path(text)


def test_a_getter_finds_what_a_search_finds():
    record = {"a": {"b": [1, {"c": 2}]}, "t": "text"}
    for text, value in (("a.b[1].c", 2), ("a.b[0]", 1), ("t", "text")):
        path = parse_path(text)
        assert getter(path)(record) == find(record, path) == optional(path)(record) == value
    for text in ("x", "a.x", "a.b[7]", "a.b.c", "t[0]", "t.x", "a[0]"):
        path = parse_path(text)
        with pytest.raises((LookupError, TypeError)):
            getter(path)(record)
        assert optional(path)(record) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "true"),
        (1.5, "1.5"),
        ("a", "'a'"),
        ([1, 2], "a list of 2"),
        ({"a": 1}, "an object of 1 fields"),
        (b"abc", "3 bytes"),
        (1 << 5000, "a number of 5001 bits"),
        ("x" * 100, "'" + "x" * 59 + "…"),
    ],
)
def test_an_error_repeats_little_of_a_value(value, words):
    assert shown(value) == words


def test_a_whole_file_is_read():
    found = mapped(
        """
        [source]
        topic = "rides"
        format = "json"
        offset_reset = "latest"
        tombstones = "error"

        [inputs.x]
        fields = ["a", { path = "b.c", default = 0 }]
        datatype = "FP32"
        shape = [2]
        allow_nan = true

        [inputs.image]
        field = "png"
        encoding = "base64"

        [request]
        id = "ride"
        version = "v"
        priority = "meta.priority"

        [sequence]
        id = { field = "car.id" }
        type = "uint64"
        start = { field = "event", equals = ["start", "resume"] }
        end = { field = "is_last", equals = true }

        [results]
        topic = "rides.scored"
        pass = ["ride", { path = "car.id", name = "car" }]

        [results.fields]
        score = "y"
        best = { output = "y", label = true, labels = ["no", "yes"] }
        top = { output = "y", top_k = 3 }
        """
    )
    assert (found.source.topic, found.source.offset_reset, found.source.tombstones) == (
        "rides",
        "latest",
        "error",
    )
    x, image = found.inputs
    assert x.fields == (
        Field(parse_path("a"), NO_DEFAULT),
        Field(parse_path("b.c"), 0),
    )
    assert (x.datatype, x.shape, x.allow_nan) == (Datatype.FP32, (2,), True)
    assert (image.encoding, image.fields) == ("base64", (Field(parse_path("png")),))
    assert found.request.priority == parse_path("meta.priority")
    sequence = found.sequence
    assert (sequence.id, sequence.id_type) == (parse_path("car.id"), "uint64")
    assert sequence.start == Condition(parse_path("event"), ("start", "resume"))
    assert sequence.end == Condition(parse_path("is_last"), (True,))
    assert found.results.topic == "rides.scored"
    assert found.results.format.word == "json"
    assert found.results.passed == (
        PassedField("ride", parse_path("ride")),
        PassedField("car", parse_path("car.id")),
    )
    score, best, top = found.results.fields
    assert (score.output, best.is_label, best.labels, top.top_k) == ("y", True, ("no", "yes"), 3)


def test_what_is_not_said_is_what_most_want():
    found = mapped(FIELDS + '[sequence]\nid = "key"')
    assert found.source.tombstones == "skip"
    assert (found.sequence.id, found.sequence.start, found.sequence.end) == (None, None, None)
    assert (found.results.topic, found.results.format.word) == ("", "json")
    assert mapped(FIELDS).sequence is None


def test_files_that_it_names_are_read():
    text = SOURCE.replace('"json"', '"avro"\nschema = "pay.avsc"\nframing = "confluent"')
    found = mapped(text + "[inputs.x]\nfield = 'a'", {"pay.avsc": b'"string"'})
    assert (found.source.format.schema, found.source.format.framing) == ('"string"', "confluent")
    assert found.results.format.word == "avro"


def no_file(_):
    raise FileNotFoundError(2, "No such file or directory")


V2 = SOURCE.replace('"json"', '"v2"')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[source", "fraud.toml: expected TOML"),
        ("", "source.topic: expected the name of the topic"),
        ("sorce = 1\n" + FIELDS, "sorce: there is no such key, did you mean 'source'?"),
        ("[source]\ntopic = 3", "source.topic = 3: expected a text"),
        ("source = 3", "source = 3: expected a table"),
        ('[source]\ntopic = "t"\nformat = "jsn"', "source.format = 'jsn': did you mean 'json'?"),
        ('[source]\ntopic = "t"', "source.format: expected one of json, avro, protobuf, raw, v2"),
        (
            '[source]\ntopic = "t"\nformat = "json"',
            "source.offset_reset: expected earliest or latest: where to begin the first time",
        ),
        (SOURCE.replace("earliest", "begin"), "source.offset_reset = 'begin': expected one of"),
        (
            SOURCE + 'tombstones = "drop"',
            "source.tombstones = 'drop': expected one of skip, error",
        ),
        (SOURCE + 'schema = "s"', "source.schema = 's': format 'json' has no such key"),
        (SOURCE, "inputs: expected a table [inputs.NAME] for each input of the model"),
        ("inputs = 1\n" + SOURCE, "inputs = 1: expected a table"),
        (INPUT + 'feld = "a"', "inputs.x.feld: there is no such key, did you mean 'field'?"),
        (INPUT, "inputs.x.field: expected either field, or fields"),
        (INPUT + 'field = "a"\nfields = ["b"]', "expected either field, or fields"),
        (INPUT + "fields = []", "inputs.x.fields = []: expected at least one path"),
        (INPUT + 'fields = "a"', "inputs.x.fields = 'a': expected an array"),
        (INPUT + "fields = [1]", "inputs.x.fields[0] = 1: expected a path, or a table"),
        (
            INPUT + 'fields = [{path = "a", def = 1}]',
            "fields[0].def: there is no such key, did you",
        ),
        (INPUT + 'fields = ["a", "b..c"]', "inputs.x.fields[1] = b..c: expected names with dots"),
        (INPUT + 'field = "a["', "inputs.x.field = a[: expected names with dots"),
        (
            INPUT + 'field = "a"\nencoding = "lst"',
            "inputs.x.encoding = 'lst': did you mean 'list'?",
        ),
        (
            INPUT + 'fields = ["a", "b"]\nencoding = "list"',
            "inputs.x.encoding = 'list': expected number or string, for there are several fields",
        ),
        (
            INPUT + 'field = "a"\ndatatype = "FLOAT"',
            "inputs.x.datatype = 'FLOAT': expected one of BOOL",
        ),
        (INPUT + 'field = "a"\nshape = [-2]', "inputs.x.shape = [-2]: expected whole numbers"),
        (INPUT + 'field = "a"\nallow_nan = 1', "inputs.x.allow_nan = 1: expected true or false"),
        (FIELDS + '[request]\nkey = "a"', "request.key: there is no such key"),
        (FIELDS + "[request]\nid = 1", "request.id = 1: expected a text"),
        (FIELDS + "[sequence]", 'sequence.id: expected "key", or { field = "…" }'),
        (FIELDS + '[sequence]\nid = "keys"', "sequence.id = 'keys': expected \"key\""),
        (FIELDS + '[sequence]\nid = "key"\nstart = "first"', 'expected "first-sight"'),
        (
            FIELDS + '[sequence]\nid = "key"\nend = {field = "a"}',
            "sequence.end.equals: expected a text, a number, true or false",
        ),
        (FIELDS + '[sequence]\nid = "key"\ntype = "int"', "sequence.type = 'int': "),
        (FIELDS + '[results]\ntopic = "payments"', "expected another topic than the source"),
        (FIELDS + '[results]\nformat = "raw"', "results.format = 'raw': expected one of json"),
        (FIELDS + "[results]\npass = [1]", "results.pass[0] = 1: expected a path, or a table"),
        (FIELDS + '[results]\npass = ["a", "b.a"]', "results.pass = a: the result has a field of"),
        (FIELDS + '[results]\npass = ["error"]', "already, which is what went wrong"),
        (FIELDS + '[results.fields]\ny = ""', "results.fields.y = '': expected the name of an"),
        (FIELDS + "[results.fields.y]", "results.fields.y.output: expected the name of an output"),
        (
            FIELDS + '[results.fields.y]\noutput = "y"\ntop_k = -1',
            "results.fields.y.top_k = -1: expected a whole number of 0 or more",
        ),
        (
            FIELDS + '[results.fields.y]\noutput = "y"\ntop_k = 1\nlabel = true',
            "expected either label or top_k",
        ),
        (
            FIELDS + '[results.fields.y]\noutput = "y"\nlabels = ["a"]',
            "expected label = true or top_k beside it",
        ),
        (
            FIELDS + '[results.fields.y]\noutput = "y"\ntop_k = 2\nlabels = [1]',
            "expected texts, by place",
        ),
        (
            V2 + "[inputs.x]\nfield = 'a'",
            "inputs = {'x': {'field': 'a'}}: expected none with format",
        ),
        (V2 + '[results]\nformat = "json"', "results.format = json: expected v2"),
    ],
)
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(ConfigError) as caught:
        mapped(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith("fraud.toml: ")


def test_a_file_that_is_not_there_is_named():
    text = SOURCE.replace('"json"', '"avro"\nschema = "pay.avsc"')
    with pytest.raises(
        ConfigError, match=r"source\.schema = 'pay\.avsc': the file cannot be read: No"
    ):
        read_mapping(text, "fraud.toml", no_file)
