"""`headrace infer`: asks a model from the shell, over HTTP or by a record over Kafka."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from headrace.deploy.client import HttpClient
from headrace.deploy.console import errors, out, print_table
from headrace.deploy.failure import CommandFailed
from headrace.deploy.inputs import InputSpec, example_tensors, tensors_from_arguments
from headrace.deploy.log_client import LogClient
from headrace.deploy.options import with_settings
from headrace.deploy.settings import Settings
from headrace.schemas import v2json
from headrace.schemas.infer import InferRequest, InferResponse, RequestedOutput
from headrace.schemas.tensor import Tensor

SHOWN_ELEMENTS = 8
"""Elements of an output that the table shows; --json shows all."""

EXAMPLES = """[bold]Examples[/]

  headrace infer mlp --example

  headrace infer mlp x=1,2,3,4

  headrace infer mlp 'x=[[1,2,3,4],[5,6,7,8]]' --json

  headrace infer classifier image=@cat.jpg mask=@mask.npy

  headrace infer mlp --request request.json

  headrace infer mlp x=1,2,3,4 --bootstrap-servers 127.0.0.1:9092
"""


@with_settings(
    "bootstrap_servers", "kafka_config", "topic_prefix", "claim_check_url", "config", "log_level"
)
def infer(
    *,
    settings: Settings,
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUES|NAME=@FILE]...",
            help="Inputs: values with commas between, a JSON list, or a file (.npy; any for BYTES).",
        ),
    ] = None,
    model_version: Annotated[
        str, typer.Option("--model-version", help="Version; none is the highest that is ready.")
    ] = "",
    example: Annotated[
        bool, typer.Option("--example", help="Make small inputs that fit the model.")
    ] = False,
    request: Annotated[
        Path | None,
        typer.Option("--request", help="File with a request as V2 JSON; - is standard input."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", help="Output to return; repeatable, none is all."),
    ] = None,
    json_out: Annotated[
        bool, typer.Option("--json", help="Print the response as V2 JSON.")
    ] = False,
    url: Annotated[
        str,
        typer.Option(
            "--url", envvar="HEADRACE_URL", help="Gateway to ask, unless Kafka is given."
        ),
    ] = "http://127.0.0.1:8000",
    timeout_ms: Annotated[
        int, typer.Option("--timeout-ms", min=1, help="Milliseconds to wait for the answer.")
    ] = 60_000,
    idempotency_key: Annotated[
        str,
        typer.Option(
            "--idempotency-key",
            help="Key of this request: asked again with it, the model answers as before and does not run again.",
        ),
    ] = "",
) -> None:
    """Ask a model: over HTTP, or by a record where --bootstrap-servers or --kafka-config is given.

    Their variables count, too; HEADRACE_KAFKA_… properties say how Kafka is reached, not that it is asked.
    """
    body = _chosen_body(inputs, request, output, example=example)
    client = (
        LogClient(settings, timeout_ms=timeout_ms, key=idempotency_key)
        if settings.bootstrap_servers or settings.kafka_config
        else HttpClient(url, timeout_s=timeout_ms / 1000, key=idempotency_key)
    )
    asked = [RequestedOutput(name) for name in output or ()]
    response = asyncio.run(_ask(client, model, model_version, body, inputs or [], asked))
    if client.is_replayed:
        errors.print("The answer to an earlier request with this key:")
    print_response(response, as_json=json_out)


infer.__doc__ = f"{inspect.getdoc(infer)}\n\n{EXAMPLES}"


async def _ask(
    client: HttpClient | LogClient,
    model: str,
    version: str,
    body: bytes | None,
    arguments: Sequence[str],
    outputs: Sequence[RequestedOutput],
) -> InferResponse:
    async with client:
        if body is not None:
            return await client.infer(model, version, v2json.parse_request(body, None))
        specs = await client.input_specs(model, version)
        request = InferRequest(_tensors(specs, arguments), tuple(outputs))
        return await client.infer(model, version, request)


def _chosen_body(
    inputs: Sequence[str] | None,
    request: Path | None,
    output: Sequence[str] | None,
    *,
    example: bool,
) -> bytes | None:
    """Return the request to send as it is, None where it is made of inputs.

    Raises:
        CommandFailed: Not exactly one way to say what to send, or one that leaves another option without effect.
    """
    if [bool(inputs), example, request is not None].count(True) != 1:
        raise CommandFailed(
            "say what to send: NAME=VALUES, --example, or --request FILE (exactly one of them)",
            status=2,
        )
    if request is None:
        return None
    if output:
        raise CommandFailed(
            "--output has no effect on --request: list the outputs in the file", status=2
        )
    return _read(request)


def _tensors(specs: Sequence[InputSpec], arguments: Sequence[str]) -> tuple[Tensor, ...]:
    return tensors_from_arguments(specs, arguments) if arguments else example_tensors(specs)


def _read(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as exc:
        raise CommandFailed(
            f"--request = {path}: the file cannot be read: {exc.strerror}"
        ) from exc


def print_response(response: InferResponse, *, as_json: bool) -> None:
    """Print a response as V2 JSON, or as a table with the first elements of each output."""
    if as_json:
        value, _ = v2json.write_response(response, v2json.all_json)
        out.print(value.decode(), markup=False)
        return
    rows = [
        (tensor.name, tensor.datatype, list(tensor.shape), _first(tensor))
        for tensor in response.outputs
    ]
    title = f"{response.model_name} version {response.model_version}"
    print_table(("output", "datatype", "shape", "values"), rows, title=title)


def _first(tensor: Tensor) -> str:
    elements = tensor.numpy().ravel()
    shown = [_text(element) for element in elements[:SHOWN_ELEMENTS].tolist()]
    return ", ".join(shown) + (", …" if elements.size > SHOWN_ELEMENTS else "")


def _text(element: object) -> str:
    if isinstance(element, bytes):
        return element.decode(errors="backslashreplace")
    return (
        np.format_float_positional(element, 6, trim="-")
        if isinstance(element, float)
        else str(element)
    )
