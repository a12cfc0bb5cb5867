"""A client of a Schema Registry: schemas by id, and schemas of results registered under a subject.

It speaks Confluent's HTTP interface, which Apicurio, Karapace and Redpanda offer, too. A schema never changes under its
id, so what was fetched is remembered; several that ask for one id at a time make one request. Whatever may pass is
tried again within `RegistrySettings.max_retries`, at each of the URLs in turn. That a registry has no schema of an id
is believed only when it says so in its own words and twice: a wrong address answers 404, too, and a registry's
follower may be a moment behind the leader at which a producer has just registered.

Source: Confluent Schema Registry, API reference (schemas, subjects, errors), and its clients' configuration.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import aiohttp
from headrace.schemas.avro_schema import with_references
from headrace.schemas.errors import ConfigError, InferError, LogError
from headrace.streams.registry_settings import URL, RegistrySettings

logger = logging.getLogger(__name__)

JSON_TYPE = "application/vnd.schemaregistry.v1+json"
NO_SUBJECT, NO_VERSION, NO_SCHEMA = 40401, 40402, 40403
"""Error codes of what is not there."""

INCOMPATIBLE, INVALID = 409, 422
PASSING = frozenset({408, 425, 429})
"""Status codes that a later request may not get, beside those from 500 on."""

SECOND_LOOK_S = 0.25
"""Pause before a registry is asked a second time for a schema that it does not have, seconds."""

ABSENT_S = 30.0
"""How long the word that there is no such schema is believed, seconds."""

MAX_REFERENCES = 100
"""Schemas that one schema may refer to, in all."""

SHOWN = 500
"""Characters of a registry's words that an error repeats."""


class _Answer(NamedTuple):
    """A registry's answer: status, its error code (0 for none), its words, and what it returned."""

    status: int
    code: int
    words: str
    body: Mapping[str, object]


class SchemaRegistry:
    """See the module's docstring. An async context manager; implements `headrace.schemas.mapping_format.Schemas`.

    Attributes:
        settings: As given.
        requests: HTTP requests made so far.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        """Keep the settings; entering opens the client."""
        self.settings = settings
        self.requests = 0
        self._session: aiohttp.ClientSession | None = None
        self._texts: OrderedDict[int, str] = OrderedDict()
        self._absent: OrderedDict[int, float] = OrderedDict()  # id → until when
        self._ids: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._asking: dict[int, asyncio.Task[str | None]] = {}
        self._url = 0

    def __repr__(self) -> str:
        """Show where, and what is known."""
        urls = ",".join(self.settings.urls)
        return f"SchemaRegistry({urls}, {len(self._texts)} schemas, {len(self._asking)} asked for)"

    async def __aenter__(self) -> Self:
        """Open the client; nothing is asked yet."""
        settings = self.settings
        tls = True if settings.tls is None else settings.tls
        headers = {"Accept": f"{JSON_TYPE}, application/json"}
        if settings.token:
            headers["Authorization"] = f"Bearer {settings.token}"
        elif settings.user:
            pair = f"{settings.user}:{settings.password}".encode()
            headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.max_connections, ssl=tls),
            # Waiting for one of our own connections is no fault of the registry's: it does not count.
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=settings.timeout_s, sock_read=settings.timeout_s
            ),
            headers=headers,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        """End what is asked for and close the connections."""
        asking = tuple(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert self._session is not None
        await self._session.close()
        self._session = None

    async def fetch(self, schema_id: int) -> str | None:
        """Return the text of a schema with all that it refers to, None where the registry has none of that id.

        What is known is returned without a pause. Any number may ask for one id, and each may be cancelled.

        Raises:
            LogError: The registry does not answer after all retries (retriable), or refuses us (not).
        """
        text = self._texts.get(schema_id)
        if text is not None:
            self._texts.move_to_end(schema_id)
            return text
        if self._absent.get(schema_id, 0.0) > asyncio.get_running_loop().time():
            return None
        task = self._asking.get(schema_id)
        if task is None:
            task = self._asking[schema_id] = asyncio.create_task(self._fetched(schema_id))
            task.add_done_callback(lambda task: self._asked(schema_id, task))
        return await asyncio.shield(task)

    async def register(self, subject: str, schema: str) -> int:
        """Register a schema and return its id; one that is there already keeps its id.

        With ``auto.register.schemas`` = false it must be there.

        Raises:
            ConfigError: It is not compatible with the subject's former ones, no schema at all, or not there; the
                sentence has the registry's reason.
            LogError: As `fetch`.
        """
        known = self._ids.get((subject, schema))
        if known is not None:
            return known
        path = f"/subjects/{quote(subject, safe='')}"
        if self.settings.registers:
            path += "/versions"
        answer = await self._ask("POST", path, {"schema": schema})
        schema_id = answer.body.get("id")
        if answer.status >= 400 or type(schema_id) is not int:
            raise self._not_registered(subject, answer)
        self._ids[subject, schema] = schema_id
        _shorten(self._ids, self.settings.max_schemas)
        return schema_id

    def _not_registered(self, subject: str, answer: _Answer) -> ConfigError | LogError:
        if answer.status == INCOMPATIBLE:
            return ConfigError(
                f"the schema is not compatible with those that subject '{subject}' has, by the registry's rule: "
                f"{answer.words}",
                field="subject",
                value=subject,
            )
        if answer.code in (NO_SUBJECT, NO_VERSION, NO_SCHEMA) and not self.settings.registers:
            return ConfigError(
                f"subject '{subject}' has not this schema, and auto.register.schemas is false: register it first "
                "(headrace topics schema prints it)",
                field="subject",
                value=subject,
            )
        if answer.status == INVALID:
            return ConfigError(
                f"the registry takes the schema for none: {answer.words}",
                field="subject",
                value=subject,
            )
        return self._refusal(answer)

    def _asked(self, schema_id: int, task: asyncio.Task[str | None]) -> None:
        del self._asking[schema_id]
        if not task.cancelled():
            task.exception()  # those that asked raise it; they may all have gone

    async def _fetched(self, schema_id: int) -> str | None:
        path = f"/schemas/ids/{schema_id}"
        answer = await self._ask("GET", path)
        if answer.code == NO_SCHEMA:
            await asyncio.sleep(SECOND_LOOK_S)
            answer = await self._ask("GET", path)
        if answer.code == NO_SCHEMA:
            self._absent[schema_id] = asyncio.get_running_loop().time() + ABSENT_S
            _shorten(self._absent, self.settings.max_schemas)
            return None
        text = answer.body.get("schema")
        if answer.status >= 400 or not isinstance(text, str):
            raise self._refusal(answer)
        references = answer.body.get("references")
        if references and answer.body.get("schemaType", "AVRO") == "AVRO":
            text = await self._with_references(text, references)
        self._texts[schema_id] = text
        _shorten(self._texts, self.settings.max_schemas)
        return text

    async def _with_references(self, text: str, references: object) -> str:
        """Return a schema that stands alone: the types that others define are written where they are used first."""
        found: dict[str, str] = {}
        waiting = _references(references)
        while waiting:
            name, subject, version = waiting.pop()
            if name in found:
                continue
            if len(found) == MAX_REFERENCES:
                raise LogError(
                    f"a schema at {self._where()} refers to more than {MAX_REFERENCES} others, expected fewer",
                    retriable=False,
                )
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            answer = await self._ask("GET", path)
            schema = answer.body.get("schema")
            if answer.status >= 400 or not isinstance(schema, str):
                raise self._refusal(answer)
            found[name] = schema
            waiting += _references(answer.body.get("references"))
        try:
            return with_references(text, found)
        except InferError:
            return text  # what is wrong with it is said where records are read with it

    async def _ask(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> _Answer:
        """Ask until there is an answer that trying again would not change.

        Raises:
            LogError: There is none, or it refuses whoever we are.
        """
        settings, wait_s = self.settings, self.settings.wait_s
        for retries_left in range(settings.max_retries, -1, -1):
            try:
                return await self._ask_once(method, path, body)
            except LogError as exc:
                if not exc.retriable or not retries_left:
                    raise
                logger.debug("%s; asking again in %g s", exc.detail, wait_s)
            self._url = (self._url + 1) % len(settings.urls)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, settings.max_wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def _ask_once(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> _Answer:
        assert self._session is not None
        self.requests += 1
        where, limit = self._where(), self.settings.max_bytes
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": JSON_TYPE}
        try:
            async with (
                self._session.request(
                    method, where + path, data=data, headers=headers, allow_redirects=False
                ) as response,
                asyncio.timeout(self.settings.timeout_s),
            ):
                raw = bytearray()
                async for piece in response.content.iter_any():
                    raw += piece
                    if len(raw) > limit:
                        break
                status = response.status
        except (aiohttp.ClientError, OSError) as exc:  # TimeoutError is one of these
            what = str(exc) or type(exc).__name__
            raise LogError(
                f"the Schema Registry at {where} does not answer: {what}", retriable=True
            ) from exc
        if len(raw) > limit:
            raise LogError(
                f"the Schema Registry at {where} answers {path} with more than {limit} bytes",
                retriable=False,
            )
        answer = _read(status, bytes(raw))
        if status >= 500 or status in PASSING:
            raise LogError(
                f"the Schema Registry at {where} answers {status}: {answer.words}", retriable=True
            )
        if status in (401, 403) or (answer.code == 0 and not 200 <= status < 300):
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: _Answer) -> LogError:
        where, status = self._where(), answer.status
        if status in (401, 403):
            said = f"refuses us ({status}): {answer.words}; see basic.auth.user.info"
        elif answer.code:
            said = f"answers {status}, error {answer.code}: {answer.words}"
        else:
            said = f"answers {status} and not as a Schema Registry does: see {URL}"
        return LogError(f"the Schema Registry at {where} {said}", retriable=False)

    def _where(self) -> str:
        return self.settings.urls[self._url]


def _read(status: int, raw: bytes) -> _Answer:
    """Read what should be JSON; of anything else only the status counts."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return _Answer(status, 0, "no JSON object", {})
    code, words = body.get("error_code"), body.get("message")
    return _Answer(
        status,
        code if type(code) is int else 0,
        words[:SHOWN] if isinstance(words, str) else "without a message",
        body,
    )


def _references(found: object) -> list[tuple[str, str, int]]:
    """Return name, subject and version of each reference, and nothing of what is malformed."""
    if not isinstance(found, Sequence) or isinstance(found, str):
        return []
    references = []
    for item in found:
        if not isinstance(item, Mapping):
            continue
        name, subject, version = (item.get(word) for word in ("name", "subject", "version"))
        if isinstance(name, str) and isinstance(subject, str) and type(version) is int:
            references.append((name, subject, version))
    return references


def _shorten(kept: OrderedDict[Any, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
