"""Fetches schemas from a schema registry with the HTTP interface of Confluent's Schema Registry.

A message in the wire format of the registry begins with a header: a zero byte, then the number of the schema in four
bytes, big-endian. The schema with a number never changes, so a client fetches each schema once.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from spark_export.decode.json_text import Malformed
from spark_export.decode.schema_options import RegistryOptions
from spark_export.errors import OptionError, SourceError
from spark_export.source.endpoint import resolve_endpoint

HEADER_BYTES = 5
ANSWER_BYTES_MAX = 16 * 1024 * 1024
RETRY_DELAY_S = 0.5
ABSENT_CODES = (40401, 40402, 40403)
"""The codes of a registry's answer 404: no such subject, no such version, and no such schema."""
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class RegistryFailed(SourceError):
    """The schema registry cannot be reached, refuses the credentials, or its answer is not a schema."""


def split_header(message: bytes) -> tuple[int, bytes]:
    """Splits off the header of the registry. Returns the schema number and the rest. Raises Malformed."""
    if len(message) < HEADER_BYTES or message[0] != 0:
        raise Malformed("the message has no header of a schema registry (a zero byte and four bytes)")
    return int.from_bytes(message[1:HEADER_BYTES], "big"), message[HEADER_BYTES:]


class Registry:
    """A client of one schema registry."""

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._known: dict[str, dict[str, Any] | None] = {}

    def schema(self, number: int, kind: str, form: str | None = None) -> dict[str, Any]:
        """Returns the registry's answer about a schema: its `schema` and `references`. Raises Malformed,
        RegistryFailed."""
        found = self._get(f"/schemas/ids/{number}", form)
        if found is None:
            raise Malformed(f"the registry has no schema {number}")
        return self._checked(found, f"schema {number}", kind)

    def reference(self, reference: Any, kind: str, form: str | None = None) -> dict[str, Any]:
        """Returns the answer about a schema in `references` of another answer. Raises as `schema` does."""
        try:
            subject, version = str(reference["subject"]), int(reference["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise RegistryFailed(f"{self._options.url}: {reference!r} is no reference to a schema") from error
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}", form)
        if found is None:
            raise Malformed(f"the registry has no version {version} of {subject}")
        return self._checked(found, f"version {version} of {subject}", kind)

    def _checked(self, found: dict[str, Any], name: str, kind: str) -> dict[str, Any]:
        if found.get("schemaType", "AVRO") != kind:
            raise Malformed(f"{name} is of the kind {found.get('schemaType', 'AVRO')}, not {kind}")
        if not isinstance(found.get("schema"), str) or not isinstance(found.get("references", []), list):
            raise RegistryFailed(f"{self._options.url}: the answer about {name} contains no schema")
        return found

    def _get(self, path: str, form: str | None) -> dict[str, Any] | None:
        """Returns the JSON object at a path of the registry, fetched once; None if the registry answers 404."""
        path += "" if form is None else f"?format={form}"
        if path not in self._known:
            for attempts_left in range(self._options.retries, -1, -1):
                try:
                    self._known[path] = self._fetch(path)
                    break
                except _MayPass as error:
                    if not attempts_left:
                        raise RegistryFailed(f"{self._options.url}{path}: {error}") from error
                    threading.Event().wait(RETRY_DELAY_S)
        return self._known[path]

    def _fetch(self, path: str) -> dict[str, Any] | None:
        url = self._options.url + path
        request = urllib.request.Request(url, headers={"Accept": f"{MEDIA_TYPE}, application/json"})
        if self._options.auth is not None:
            # After a redirection, the credentials are not sent to the other server.
            request.add_unredirected_header("Authorization", credentials(self._options.auth))
        try:
            with urllib.request.urlopen(request, timeout=self._options.timeout_s) as answer:
                body = answer.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    _check_absent(url, error)
                    return None
                if error.code in (401, 403):
                    raise RegistryFailed(
                        f"{url}: {error.code} {error.reason}; schemaRegistryAuth names the credentials"
                    ) from error
                if error.code == 429 or error.code >= 500:
                    raise _MayPass(f"{error.code} {error.reason}") from error
                raise RegistryFailed(f"{url}: {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise _MayPass(str(error) or type(error).__name__) from error
        if len(body) > ANSWER_BYTES_MAX:
            raise RegistryFailed(f"{url}: the answer has more than {ANSWER_BYTES_MAX} bytes")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RegistryFailed(f"{url}: the answer is no JSON; is this a schema registry?") from error
        if not isinstance(found, dict):
            raise RegistryFailed(f"{url}: the answer is no JSON object; is this a schema registry?")
        return found


def _check_absent(url: str, error: urllib.error.HTTPError) -> None:
    """Raises RegistryFailed for a 404 of a wrong path or server, which does not show that a message is bad."""
    try:
        body = json.loads(error.read(ANSWER_BYTES_MAX))
    except (ValueError, RecursionError, OSError, http.client.HTTPException):
        body = None
    if not isinstance(body, dict) or body.get("error_code") not in ABSENT_CODES:
        raise RegistryFailed(
            f"{url}: 404 {error.reason}, not a registry's answer; is this a schema registry?"
        ) from error


class _MayPass(Exception):
    """A temporary failure of a request. The same request can succeed later."""


def credentials(place: str) -> str:
    """Returns the value of the header `Authorization` from the variable or file at `place`, which has `USER:PASSWORD`
    or `bearer TOKEN`. Raises OptionError."""
    try:
        text = resolve_endpoint(place)
    except OptionError as error:
        raise OptionError(f"schemaRegistryAuth: {str(error).removeprefix('endpoint ')}") from error
    if text[:7].lower() == "bearer ":
        return f"Bearer {text[7:].strip()}"
    if ":" not in text:
        raise OptionError(f"schemaRegistryAuth: the text of {place} is neither USER:PASSWORD nor bearer TOKEN")
    return f"Basic {base64.b64encode(text.encode()).decode()}"
