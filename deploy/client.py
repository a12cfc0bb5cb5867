"""Asks a gateway over HTTP: what `headrace infer` and `headrace models` need of the V2 protocol."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import quote

import aiohttp
from headrace.deploy.failure import CommandFailed
from headrace.deploy.inputs import InputSpec
from headrace.schemas import v2json
from headrace.schemas.infer import InferRequest, InferResponse
from headrace.schemas.tensor import datatype_of
from headrace.streams.idempotency import KEY_HEADER, REPLAYED_HEADER

HEADER_LENGTH = "Inference-Header-Content-Length"


class HttpClient:
    """A V2 client. An async context manager. Its bearer token, where one is needed, is the variable HEADRACE_TOKEN's.

    Every failure is a `CommandFailed` with what the server said, or that it cannot be reached.

    Attributes:
        is_replayed: The latest answer is that of an earlier request with the same idempotency key.
    """

    def __init__(self, url: str, *, timeout_s: float, key: str = "") -> None:
        """Keep the server's root, such as ``http://127.0.0.1:8000``, and how long a call may take.

        ``key`` is the idempotency key of requests; ``""`` is none.
        """
        self.url = url.rstrip("/")
        self.is_replayed = False
        self._key = key
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Make the session; nothing is sent yet."""
        token = os.environ.get("HEADRACE_TOKEN")
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(self._timeout_s),
            headers={"Authorization": f"Bearer {token}"} if token else None,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()

    async def input_specs(self, model: str, version: str) -> list[InputSpec]:
        """Return what a model takes, from its metadata."""
        body, _ = await self._call("GET", _model_path(model, version))
        metadata = json.loads(body)
        return [
            InputSpec(item["name"], datatype_of(item["datatype"]), tuple(item["shape"]))
            for item in metadata["inputs"]
        ]

    async def infer(self, model: str, version: str, request: InferRequest) -> InferResponse:
        """Ask a model, with tensors in binary both ways."""
        wanted = {**request.parameters, "binary_data_output": True}
        value, length = v2json.write_request(
            request._replace(parameters=wanted), v2json.all_binary
        )
        return await self.infer_raw(model, version, value, length)

    async def infer_raw(
        self, model: str, version: str, body: bytes, length: int | None = None
    ) -> InferResponse:
        """Ask a model with a body that is a V2 request already; ``length`` is that of its JSON part (BN-01)."""
        headers = {"Content-Type": "application/json"}
        if length is not None:
            headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)}
        if self._key:
            headers[KEY_HEADER] = self._key
        answer, got = await self._call(
            "POST", _model_path(model, version) + "/infer", body, headers
        )
        self.is_replayed = got.get(REPLAYED_HEADER) == "true"
        answered = got.get(HEADER_LENGTH)
        return v2json.parse_response(answer, None if answered is None else int(answered))

    async def index(self) -> list[dict[str, Any]]:
        """Return the repository index: every model version with its state and reason (PB-63)."""
        body, _ = await self._call("POST", "/v2/repository/index", b"{}")
        found: list[dict[str, Any]] = json.loads(body)
        return found

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[bytes, Mapping[str, str]]:
        assert self._session is not None, "entered first"
        try:
            async with self._session.request(
                method, self.url + path, data=body, headers=headers
            ) as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise CommandFailed(_refusal(answer.status, content))
                return content, answer.headers
        except TimeoutError as exc:
            raise CommandFailed(f"{self.url} did not answer within {self._timeout_s:g} s") from exc
        except aiohttp.InvalidURL as exc:
            raise CommandFailed(
                f"--url = {self.url}: expected something like http://127.0.0.1:8000", status=2
            ) from exc
        except aiohttp.ClientError as exc:
            cause = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
            raise CommandFailed(
                f"no gateway answers on {self.url} ({cause}); start one with: headrace serve PATH"
            ) from exc


def _model_path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _refusal(status: int, content: bytes) -> str:
    """Return what an error body says, whoever made it."""
    try:
        detail = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError):
        detail = content[:200].decode(errors="replace").strip() or "no reason given"
    return f"the gateway answered {status}: {detail}"
