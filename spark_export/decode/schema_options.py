"""Checks the options that describe Avro and Protobuf messages: a schema, a descriptor file or a schema registry.

The Spark driver reads the schema files, so executors need no copies of the files. Each executor reads the password or
token of the registry itself, because an option with a password would be visible in Spark plans.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from spark_export.errors import OptionError

SCHEMA_OPTION_NAMES = (
    *("avroSchema", "protobufDescriptor", "protobufMessage"),
    *("schemaRegistry", "schemaRegistryAuth", "schemaRegistryTimeoutMs"),
)
REGISTRY_TIMEOUT_MS = 10_000


@dataclass(frozen=True)
class RegistryOptions:
    """A schema registry. Its credentials are at `env:NAME` or `file:PATH`; None for no credentials."""

    url: str
    auth: str | None = None
    timeout_s: float = REGISTRY_TIMEOUT_MS / 1000
    retries: int = 3


@dataclass(frozen=True)
class SchemaOptions:
    """The options that describe Avro or Protobuf messages. A field is None if its option is absent.

    With a `registry`, each message begins with the number of its schema.
    """

    avro_schema: str | None = None
    descriptor: bytes | None = None
    message: str | None = None
    registry: RegistryOptions | None = None


def schema_options(find: Callable[[str], str | None], decode: str | None, retries: int) -> SchemaOptions:
    """Checks and reads the options `SCHEMA_OPTION_NAMES`. Raises OptionError."""
    given = {name: find(name) for name in SCHEMA_OPTION_NAMES}
    kind = (decode or "").lower()
    for name, value in given.items():
        kinds = [each for each in ("avro", "protobuf") if name.startswith((each, "schemaRegistry"))]
        if value is not None and kind not in kinds:
            raise OptionError(f"{name} has a meaning with decode={' or decode='.join(kinds)} only")
    made = SchemaOptions(
        _avro_schema(given["avroSchema"]),
        _read(given["protobufDescriptor"]),
        given["protobufMessage"],
        _registry(given, retries),
    )
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
    if value.startswith("file:"):
        try:
            value = Path(value[5:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"avroSchema={value}: {error}") from error
    try:
        json.loads(value)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"avroSchema is no JSON ({error}); write the schema itself, or file:PATH") from error
    return value


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path.removeprefix("file:")).read_bytes()
    except OSError as error:
        raise OptionError(f"protobufDescriptor={path}: {error}") from error


def _registry(given: dict[str, str | None], retries: int) -> RegistryOptions | None:
    url, auth, timeout = (given[name] for name in ("schemaRegistry", "schemaRegistryAuth", "schemaRegistryTimeoutMs"))
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
    return RegistryOptions(url.rstrip("/"), auth, number / 1000, retries)
