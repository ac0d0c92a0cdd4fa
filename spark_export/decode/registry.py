"""Fetches schemas from a schema registry with the HTTP interface of Confluent's Schema Registry.

A message in the wire format of the registry begins with a header: a zero byte, then the number of the schema in four
bytes, big-endian. The schema with a number never changes, so a client fetches each schema once.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from spark_export.decode.options import RegistryOptions, text_at
from spark_export.decode.values import Malformed
from spark_export.errors import OptionError, SourceError

HEADER_BYTES = 5
ANSWER_BYTES_MAX = 16 * 1024 * 1024
SCHEMAS_MAX = 1000
"""The largest number of schemas to which a schema refers, also through other schemas."""
RETRY_DELAY_S = 0.5
ABSENT_CODES = (40401, 40402, 40403)
"""The codes of a registry's answer 404: no such subject, no such version, and no such schema."""
ABSENT_S, ABSENT_MAX = 10.0, 1_000
"""For how many seconds an answer 404 is kept (the schema may be registered later), and how many answers are kept."""
HINTS = dict.fromkeys((401, 403), "; schemaRegistryAuth names the credentials")
NO_REGISTRY = f" without a JSON object of a registry (at most {ANSWER_BYTES_MAX} bytes); is this a schema registry?"
ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryFailed(SourceError):
    """The schema registry cannot be reached, refuses the credentials, or its answer is not a schema."""


def split_header(message: bytes) -> tuple[int, bytes]:
    """Splits off the header of the registry. Returns the schema number and the rest. Raises Malformed."""
    if len(message) < HEADER_BYTES or message[0] != 0:
        raise Malformed("the message has no header of a schema registry (a zero byte and four bytes)")
    return int.from_bytes(message[1:HEADER_BYTES], "big"), message[HEADER_BYTES:]


class Registry:
    """A client of one schema registry, for schemas of one kind.

    kind: AVRO or PROTOBUF. query: the end of each request, such as `?format=serialized`.
    """

    def __init__(self, options: RegistryOptions, kind: str, query: str = "") -> None:
        self._options = options
        self._kind = kind
        self._query = query
        self._known: dict[str, dict[str, Any]] = {}
        self._absent: dict[str, float] = {}

    def schemas(self, number: int) -> list[tuple[str, str]]:
        """Returns pairs of a name and a text: all schemas to which a schema refers, then the schema with this number.
        A schema's name is that in the reference; empty for the last one. Raises Malformed, RegistryFailed."""
        # A schema is None until the schemas to which it refers are found. Then it moves behind them.
        ordered: dict[str, tuple[str, str] | None] = {}

        def enter(path: str, name: str, what: str) -> None:
            ordered[path] = None
            if len(ordered) > SCHEMAS_MAX:
                raise Malformed(f"schema {number} of the registry refers to more than {SCHEMAS_MAX} others")
            found = self._schema(path, what)
            for each in found.get("references") or []:
                try:
                    subject, version = str(each["subject"]), int(each["version"])
                except (KeyError, TypeError, ValueError) as error:
                    raise RegistryFailed(f"{self._options.url}: {each!r} is no reference to a schema") from error
                other = f"/subjects/{quote(subject, safe='')}/versions/{version}"
                if other not in ordered:
                    enter(other, str(each.get("name", "")), f"version {version} of {subject}")
                elif ordered[other] is None:
                    raise Malformed(f"schema {number} of the registry refers to itself")
            del ordered[path]
            ordered[path] = (name, found["schema"])

        try:
            enter(f"/schemas/ids/{number}", "", f"schema {number}")
        except RecursionError as error:
            raise Malformed(f"the references of schema {number} of the registry are nested too deeply") from error
        return [each for each in ordered.values() if each is not None]

    def _schema(self, path: str, what: str) -> dict[str, Any]:
        path += self._query
        if path not in self._known and time.monotonic() >= self._absent.get(path, 0.0):
            if (fetched := self._fetch(self._options.url + path)) is not None:
                self._known[path] = fetched
            else:
                if len(self._absent) >= ABSENT_MAX:
                    # Publishers choose the numbers in their messages, so there can be any number of them.
                    self._absent.clear()
                self._absent[path] = time.monotonic() + ABSENT_S
        if (found := self._known.get(path)) is None:
            raise Malformed(f"the registry has no {what}")
        if (kind := found.get("schemaType", "AVRO")) != self._kind:
            raise Malformed(f"{what} is of the kind {kind}, not {self._kind}")
        if not isinstance(found.get("schema"), str) or not isinstance(found.get("references") or [], list):
            raise RegistryFailed(f"{self._options.url}: the answer about {what} contains no schema")
        return found

    def _fetch(self, url: str) -> dict[str, Any] | None:
        """Returns the JSON object at an address; None if a registry answers that it has no such schema."""
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            cause: Exception | None = None
            request = urllib.request.Request(url, headers={"Accept": ACCEPT})
            if self._options.auth is not None:
                # After a redirection, the credentials are not sent to the other server.
                request.add_unredirected_header("Authorization", credentials(self._options.auth))
            try:
                try:
                    answer = urllib.request.urlopen(request, timeout=self._options.timeout_s)
                except urllib.error.HTTPError as error:
                    answer = error
                with answer:
                    code, reason, found = answer.status, answer.reason, _json_object(answer.read(ANSWER_BYTES_MAX + 1))
            except (OSError, http.client.HTTPException) as error:
                problem, cause = str(error) or type(error).__name__, error
            else:
                # A 404 of a wrong path or server does not show that a message is bad.
                if code == 404 and (found or {}).get("error_code") in ABSENT_CODES:
                    return None
                if code < 300 and found is not None:
                    return found
                problem = f"{code} {reason}"
                if code != 429 and code < 500:
                    hint = HINTS.get(code) or (NO_REGISTRY if found is None or code == 404 else "")
                    raise RegistryFailed(f"{url}: {problem}{hint}")
            if time.monotonic() + RETRY_DELAY_S >= deadline:
                raise RegistryFailed(f"{url}: {problem}") from cause
            threading.Event().wait(RETRY_DELAY_S)


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body) if len(body) <= ANSWER_BYTES_MAX else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def credentials(place: str) -> str:
    """Returns the value of the header `Authorization`. The variable or file at `place` has `USER:PASSWORD` or
    `bearer TOKEN`. Raises OptionError."""
    text = text_at(place, f"schemaRegistryAuth: {place}")
    if text[:7].lower() == "bearer ":
        return f"Bearer {text[7:].strip()}"
    if ":" not in text:
        raise OptionError(f"schemaRegistryAuth: the text of {place} is neither USER:PASSWORD nor bearer TOKEN")
    return f"Basic {base64.b64encode(text.encode()).decode()}"
