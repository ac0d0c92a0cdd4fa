"""Checks the options of the decoders, given as text, and reads the files that the options name.

Only the credentials of a registry are read by each process that decodes, since Spark shows options in its plans.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from spark_export.decode.times import find_zone
from spark_export.errors import OptionError

REGISTRY_TIMEOUT_MS = 10_000
REGISTRY_OPTIONS = ("schemaRegistry", "schemaRegistryAuth", "schemaRegistryTimeoutMs")
KINDS_OF = {
    "avroSchema": ("avro",),
    **dict.fromkeys(("protobufDescriptor", "protobufMessage"), ("protobuf",)),
    **dict.fromkeys(REGISTRY_OPTIONS, ("avro", "protobuf")),
}
"""The kinds of messages to which an option applies. All other options apply to every kind whose columns have names."""
DECODE_OPTIONS = ("columnNameOfCorruptRecord", "columnNameOfProblem", "timeZone", *KINDS_OF)


@dataclass(frozen=True)
class RegistryOptions:
    """A schema registry. Its credentials are at `env:NAME` or `file:PATH`; None for no credentials.

    timeout_s: for how many seconds a failing request is repeated.
    """

    url: str
    auth: str | None = None
    timeout_s: float = REGISTRY_TIMEOUT_MS / 1000


@dataclass(frozen=True)
class DecodeOptions:
    """The checked options of a decoder. A field is None if its option is absent.

    corrupt: the column with the text (STRING) or bytes (BINARY) of a bad message, which has a wrong format or a value
        that does not fit its column. problem: the column with the reasons.
    zone: the time zone of times whose text contains no zone.
    descriptor, message: a serialized FileDescriptorSet of Protobuf, and the full name of a message in it.
    registry: with a registry, each message begins with the number of its schema.
    """

    corrupt: str = "_corrupt_record"
    problem: str = "_problem"
    zone: str = "UTC"
    avro_schema: str | None = None
    descriptor: bytes | None = None
    message: str | None = None
    registry: RegistryOptions | None = None


def decode_options(kind: str, given: Mapping[str, str]) -> DecodeOptions:
    """Checks the options `DECODE_OPTIONS` for a kind of messages; other options are ignored. Raises OptionError."""
    lower = {name.lower(): str(value).strip() for name, value in given.items()}
    found = {name: lower.get(name.lower()) or None for name in DECODE_OPTIONS}
    for name, kinds in KINDS_OF.items():
        if found[name] is not None and kind not in kinds:
            raise OptionError(f"{name} has a meaning with decode={' or decode='.join(kinds)} only")
    zone, descriptor = found["timeZone"] or DecodeOptions.zone, found["protobufDescriptor"]
    try:
        find_zone(zone)
        made = DecodeOptions(
            found["columnNameOfCorruptRecord"] or DecodeOptions.corrupt,
            found["columnNameOfProblem"] or DecodeOptions.problem,
            zone,
            _avro_schema(found["avroSchema"]),
            None if descriptor is None else Path(descriptor.removeprefix("file:")).read_bytes(),
            found["protobufMessage"],
            _registry(*(found[name] for name in REGISTRY_OPTIONS)),
        )
    except OSError as error:
        raise OptionError(f"decode={kind}: {error}") from error
    except ValueError as error:
        raise error if isinstance(error, OptionError) else OptionError(f"timeZone: {error}") from error
    if kind == "avro" and made.avro_schema is None and made.registry is None:
        raise OptionError("decode=avro: say how the messages are written, by avroSchema or schemaRegistry or both")
    if kind == "protobuf" and made.registry is None and None in (made.descriptor, made.message):
        raise OptionError(
            "decode=protobuf: say how the messages are written, by protobufDescriptor (the file that `protoc "
            "--include_imports --descriptor_set_out=FILE` writes) and protobufMessage, or by schemaRegistry"
        )
    if made.descriptor is not None and made.message is None:
        raise OptionError("protobufDescriptor describes several messages; say which one by protobufMessage")
    return made


def _avro_schema(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        text = Path(value[5:]).read_text(encoding="utf-8") if value.startswith("file:") else value
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"avroSchema is no JSON ({error}); write the schema itself, or file:PATH") from error
    return text


def _registry(url: str | None, auth: str | None, timeout: str | None) -> RegistryOptions | None:
    if url is None:
        if auth is not None or timeout is not None:
            raise OptionError("schemaRegistryAuth and schemaRegistryTimeoutMs need schemaRegistry")
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(f"schemaRegistry={url!r}: write it as http://host:port or https://host:port")
    if parts.username is not None or parts.password is not None:
        raise OptionError("schemaRegistry has a password in it, which plans would show; give schemaRegistryAuth")
    if auth is not None and not auth.startswith(("env:", "file:")):
        raise OptionError("schemaRegistryAuth is env:NAME or file:PATH, because plans show the options")
    number = REGISTRY_TIMEOUT_MS if timeout is None else int(timeout) if timeout.isdecimal() else 0
    if number < 1:
        raise OptionError(f"schemaRegistryTimeoutMs={timeout!r}: it is a whole number of at least 1")
    return RegistryOptions(url.rstrip("/"), auth, number / 1000)


def text_at(place: str, option: str) -> str:
    """Returns the text in the variable or the file at `env:NAME` or `file:PATH`, as this process finds it. Raises
    OptionError, which begins with `option`."""
    kind, _, name = place.partition(":")
    try:
        return (os.environ[name] if kind == "env" else Path(name).read_text(encoding="utf-8")).strip()
    except KeyError as error:
        raise OptionError(f"{option}: this process has no environment variable {name}") from error
    except (OSError, ValueError) as error:
        raise OptionError(f"{option}: {error}") from error
