"""The description of the HTTP API that the gateway serves, for generated clients and for fuzzing.

Made of the table of routes (`headrace.streams.http_routes`), so that it has every path and none besides. What it says
about bodies is what a caller must know to be understood; `SEMANTICS` §2 has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

from aiohttp import web
from headrace.schemas.record import TRACEPARENT
from headrace.schemas.tensor import Datatype
from headrace.streams.http_async import PREFER, REPLY_TOPIC_HEADER
from headrace.streams.http_call import MAX_TIMEOUT_MS, TIMEOUT_HEADER, Handler, HttpCall
from headrace.streams.http_errors import JSON_TYPE, json_response
from headrace.streams.http_infer import BINARY_TYPE, LENGTH_HEADER
from headrace.streams.http_routes import GROUPS, Kind, Target, paths, resolve
from headrace.streams.http_statistics import WORKERS
from headrace.streams.idempotency import KEY_HEADER

Json = dict[str, Any]

DATATYPES = [datatype.value for datatype in Datatype]


def document() -> Json:
    """Return the description, an OpenAPI 3.0 object."""
    found: dict[str, Json] = {}
    for path in paths():
        target = resolve(_example(path))
        assert target is not None, path
        found[path] = {
            "parameters": [_path_parameter(name) for name in _PLACES if f"{{{name}}}" in path],
            **{method.lower(): _operation(path, method, target) for method in target.methods},
        }
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "Headrace: the V2 inference protocol",
            "version": metadata.version("headrace"),
        },
        "paths": found,
        "components": {"schemas": _SCHEMAS},
    }


async def openapi(_call: HttpCall) -> web.Response:
    """Answer the description."""
    return json_response(_document())


HANDLERS: Mapping[Kind, Handler] = {Kind.OPENAPI: openapi}

_document = cache(document)


class _Body(NamedTuple):
    """What a kind of route takes and gives: names of schemas, ``""`` for none, and of what type the answer is."""

    request: str = ""
    response: str = ""
    answer_type: str = JSON_TYPE


_BODIES: Mapping[Kind, _Body] = {
    Kind.SERVER: _Body("", "ServerMetadata"),
    Kind.MODEL: _Body("", "ModelMetadata"),
    Kind.CONFIG: _Body("", "Anything"),
    Kind.INFER: _Body("InferRequest", "InferResponse"),
    Kind.GENERATE: _Body("GenerateRequest", "GenerateResponse"),
    Kind.GENERATE_STREAM: _Body("GenerateRequest", "Events", "text/event-stream"),
    Kind.REQUEST: _Body("", "InferResponse"),
    Kind.INDEX: _Body("IndexRequest", "Index"),
    Kind.CONTROL: _Body("ControlRequest", ""),
    Kind.OPENAPI: _Body("", "Anything"),
    Kind.STATISTICS: _Body("", "Anything"),
    Kind.SYSTEM_SHARED_MEMORY: _Body("Anything", ""),
    Kind.CUDA_SHARED_MEMORY: _Body("Anything", ""),
}


class _Said(NamedTuple):
    """What a caller may say beside path and body.

    Attributes:
        name: Of the header, or of the parameter in the query.
        said: What it means.
        schema: Of its value.
        kinds: Routes that look at it.
        place: Where it stands.
    """

    name: str
    said: str
    schema: Json
    kinds: tuple[Kind, ...]
    place: str = "header"


_ASKING = (Kind.INFER, Kind.GENERATE, Kind.GENERATE_STREAM)

_SAID = (
    _Said(
        TIMEOUT_HEADER,
        "Milliseconds until nobody waits for the answer any more.",
        {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS},
        _ASKING,
    ),
    _Said(
        KEY_HEADER,
        "Who repeats it gets the first answer, and the model does not run again.",
        {"type": "string", "pattern": "^[!-~]{1,255}$"},
        _ASKING,
    ),
    _Said(TRACEPARENT, "W3C trace context; goes along.", {"type": "string"}, _ASKING),
    _Said(
        PREFER,
        "`respond-async` is answered 202 once the log has the request; `wait=<seconds>` waits first.",
        {"type": "string"},
        (Kind.INFER, Kind.REQUEST),
    ),
    _Said(
        REPLY_TOPIC_HEADER,
        "With `respond-async`: the topic that the answer goes to.",
        {"type": "string"},
        (Kind.INFER,),
    ),
    _Said(
        LENGTH_HEADER,
        "Bytes of the JSON before binary tensors; 0 where the body is the sole input's data.",
        {"type": "integer", "minimum": 0},
        (Kind.INFER,),
    ),
    _Said(
        WORKERS,
        "Adds each worker's own figures.",
        {"type": "boolean"},
        (Kind.STATISTICS,),
        "query",
    ),
)

_PLACES: Mapping[str, tuple[str, Json]] = {
    "model": ("A model's name.", {"type": "string", "minLength": 1}),
    "version": ("A version number.", {"type": "string", "pattern": "^[0-9]{1,18}$"}),
    "request": (
        "The id of a call that was accepted with 202.",
        {"type": "string", "minLength": 1},
    ),
    "region": ("A shared memory region's name.", {"type": "string", "minLength": 1}),
}
"""Parts of paths: what they are, and an example's schema."""


def _example(path: str) -> str:
    for name, example in (("model", "m"), ("version", "1"), ("region", "r"), ("request", "0")):
        path = path.replace(f"{{{name}}}", example)
    return path


def _path_parameter(name: str) -> Json:
    said, schema = _PLACES[name]
    return {"name": name, "in": "path", "required": True, "description": said, "schema": schema}


def _operation(path: str, method: str, target: Target) -> Json:
    body = _BODIES.get(target.kind, _Body("Anything", "Anything"))
    words = [part.strip("{}") for part in path.split("/")[2:]]
    worked: Json = {"200": _content("It worked.", body.response, body.answer_type)}
    if target.kind in (Kind.INFER, Kind.REQUEST):
        worked["202"] = _content("It is to be answered later (Prefer: respond-async).", "Anything")
    if target.kind is Kind.ABSENT:
        worked = {"501": _content(f"{target.feature} is not offered here.", "Error")}
    found: Json = {
        "operationId": "_".join([method.lower(), *words]).replace(".", "_"),
        "tags": [GROUPS[target.kind].value],
        "responses": {
            **worked,
            "default": _content("It did not work; health routes say no more.", "Error"),
        },
    }
    if method == "POST" and body.request:
        found["requestBody"] = {
            "required": target.kind is Kind.INFER,
            **_content("", body.request),
        }
    if target.kind is Kind.INFER:
        found["requestBody"]["content"].update(_BINARY)
    if target.kind in (Kind.INFER, Kind.REQUEST):
        worked["200"]["content"].update(_BINARY)
    said = [_parameter(each) for each in _SAID if target.kind in each.kinds]
    return {**found, "parameters": said} if said else found


def _parameter(said: _Said) -> Json:
    return {
        "name": said.name,
        "in": said.place,
        "description": said.said,
        "schema": said.schema,
    }


def _content(said: str, schema: str, content_type: str = JSON_TYPE) -> Json:
    found: Json = {"description": said} if said else {}
    if schema:
        reference = {"$ref": f"#/components/schemas/{schema}"}
        found["content"] = {content_type: {"schema": reference}}
    return found


def _object(required: tuple[str, ...] = (), **properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        **({"required": list(required)} if required else {}),
    }


def _list_of(item: Json) -> Json:
    return {"type": "array", "items": item}


_BINARY: Json = {BINARY_TYPE: {"schema": {"type": "string", "format": "binary"}}}
"""JSON with binary tensors behind it."""

_TEXT: Json = {"type": "string"}
_FLAG: Json = {"type": "boolean"}
_COUNT: Json = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_PARAMETERS: Json = {"$ref": "#/components/schemas/Parameters"}
_METADATA: Json = _list_of(
    _object(
        ("name", "datatype", "shape"),
        name=_TEXT,
        datatype={"type": "string", "enum": DATATYPES},
        shape=_list_of({"type": "integer"}),
    )
)
_TENSOR = _object(
    ("name", "shape", "datatype"),
    name=_TEXT,
    shape=_list_of(_COUNT),
    datatype={"type": "string", "enum": DATATYPES},
    parameters=_PARAMETERS,
    data={"type": "array", "items": {}},
)
_SCHEMAS: Json = {
    "Anything": {"type": "object"},
    "Error": _object(("error",), error=_TEXT),
    "Parameters": {
        "type": "object",
        "additionalProperties": {"oneOf": [{"type": "string"}, {"type": "number"}, _FLAG]},
    },
    "InferRequest": _object(
        ("inputs",),
        id=_TEXT,
        parameters=_PARAMETERS,
        inputs=_list_of(_TENSOR),
        outputs=_list_of(_object(("name",), name=_TEXT, parameters=_PARAMETERS)),
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        id=_TEXT,
        model_name=_TEXT,
        model_version=_TEXT,
        parameters=_PARAMETERS,
        outputs=_list_of(_TENSOR),
    ),
    "ServerMetadata": _object(
        ("name", "version", "extensions"), name=_TEXT, version=_TEXT, extensions=_list_of(_TEXT)
    ),
    "ModelMetadata": _object(
        ("name", "versions", "platform", "inputs", "outputs"),
        name=_TEXT,
        versions=_list_of(_TEXT),
        platform=_TEXT,
        inputs=_METADATA,
        outputs=_METADATA,
    ),
    "GenerateRequest": {
        "type": "object",
        "description": "A key that names an input becomes it, a scalar or a list; others are parameters.",
        "properties": {"id": _TEXT, "parameters": {"type": "object"}},
    },
    "GenerateResponse": _object(
        ("model_name", "model_version"), id=_TEXT, model_name=_TEXT, model_version=_TEXT
    ),
    "Events": {"type": "string", "description": "`data: <GenerateResponse>` for each response."},
    "IndexRequest": _object(ready=_FLAG),
    "Index": _list_of(_object(("name",), name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)),
    "ControlRequest": _object(parameters={"type": "object"}),
}
