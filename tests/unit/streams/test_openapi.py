"""The description of the HTTP API: it has every route, and nothing else."""

import json

import pytest
from headrace.streams.http_routes import GROUPS, Kind, paths, resolve
from headrace.streams.openapi import document


def test_every_path_is_described_with_its_verbs_and_no_other():
    described = document()["paths"]
    assert list(described) == list(paths())
    for path, item in described.items():
        target = resolve(path.replace("{version}", "1"))
        assert target is not None, path
        assert {verb.upper() for verb in item if verb != "parameters"} == set(target.methods)
        named = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        assert {parameter["name"] for parameter in item["parameters"]} == named


def test_every_kind_of_route_has_a_path_and_a_group():
    reached = {resolve(path.replace("{version}", "1")).kind for path in paths()}
    assert reached | {Kind.ABSENT} == set(Kind)
    assert set(GROUPS) == set(Kind)


@pytest.mark.parametrize("path", list(paths()))
def test_a_path_is_a_route_by_its_parts_and_not_by_luck(path):
    """Each part is looked at: the path with one of them changed is another route, or none."""
    concrete = path.replace("{model}", "m").replace("{version}", "1").replace("{region}", "r")
    for number, part in enumerate(path.split("/")[1:], 1):
        if not part.startswith("{"):
            parts = concrete.split("/")
            parts[number] += "x"
            assert resolve("/".join(parts)) != resolve(concrete)


def test_the_description_is_valid_json_whose_references_exist():
    text = json.dumps(document())
    named = set(document()["components"]["schemas"])
    referred = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert referred <= named
    ids = [
        operation["operationId"]
        for item in document()["paths"].values()
        for verb, operation in item.items()
        if verb != "parameters"
    ]
    assert len(set(ids)) == len(ids)


ASKING = ("X-Headrace-Timeout-Ms", "Idempotency-Key", "traceparent")
LATER = ("Prefer", "X-Headrace-Reply-Topic", "Inference-Header-Content-Length")


@pytest.mark.parametrize(
    ("path", "method", "names"),
    [
        ("/v2/models/{model}/infer", "post", (*ASKING, *LATER)),
        ("/v2/models/{model}/generate_stream", "post", ASKING),
        ("/v2/requests/{request}", "delete", ("Prefer",)),
        ("/v2/models/stats", "get", ("workers",)),
        ("/v2/models/{model}", "get", ()),
    ],
)
def test_headers_and_queries_are_described_where_they_are_looked_at(path, method, names):
    operation = document()["paths"][path][method]
    assert [each["name"] for each in operation.get("parameters", ())] == list(names)


def test_binary_tensors_are_described_both_ways():
    operation = document()["paths"]["/v2/models/{model}/infer"]["post"]
    for described in (operation["requestBody"], operation["responses"]["200"]):
        assert list(described["content"]) == ["application/json", "application/octet-stream"]
