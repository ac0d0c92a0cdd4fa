"""The command `python -m bare`, which decodes and encodes messages, and checks and formats schemas.

Exit codes: 0 done; 1 failed, with one line on standard error that names the error and its position; 2 wrong usage."""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from bare import json_form
from bare.errors import BareError, SchemaError
from bare.schema.ast import Definition, names_in
from bare.schema.dialect import parse
from bare.schema.formatter import format_document
from bare.schema.loader import Schema, load, load_blocks

DONE, FAILED, WRONG_USAGE = 0, 1, 2

MARKDOWN_SUFFIX = ".md"


class _Failure(Exception):
    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Wrong options raise SystemExit with code 2."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except _Failure as failure:
        sys.stderr.write(f"bare {options.command}: {failure}\n")
        return failure.code
    except (BareError, OSError) as error:
        sys.stderr.write(f"bare {options.command}: {error}\n")
        return FAILED
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bare", description="Look into BARE messages and schemas.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    decode = commands.add_parser("decode", help="message to JSON", epilog=_EXAMPLES["decode"])
    decode.add_argument(
        "message", nargs="?", default="-", metavar="HEX", help="the message; - (default): standard input"
    )
    decode.add_argument("--raw", action="store_true", help="standard input is the bytes themselves, not hexadecimal")
    decode.set_defaults(run=_decode)

    encode = commands.add_parser("encode", help="JSON to message", epilog=_EXAMPLES["encode"])
    encode.add_argument("value", nargs="?", default="-", metavar="JSON", help="the value; - (default): standard input")
    encode.add_argument("--raw", action="store_true", help="write the bytes themselves, not hexadecimal")
    encode.set_defaults(run=_encode)

    for command in (decode, encode):
        command.add_argument("--schema", required=True, type=pathlib.Path, metavar="FILE", help="schema, or Markdown")
        command.add_argument("--type", required=True, metavar="NAME", help="the type of the message")
        command.add_argument("--block", type=int, metavar="N", help="which schema of a Markdown file, from 1")

    check = commands.add_parser("check", help="say what is wrong with schemas", epilog=_EXAMPLES["check"])
    check.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE", help="schema, or Markdown with schemas")
    check.set_defaults(run=_check)

    layout = commands.add_parser("format", help="write a schema in the current syntax", epilog=_EXAMPLES["format"])
    layout.add_argument("file", metavar="FILE", help="schema; -: standard input")
    layout.add_argument("--write", action="store_true", help="replace the file instead of printing")
    layout.set_defaults(run=_format)

    for command in (decode, encode, check, layout):
        command.add_argument("--dialect", choices=("auto", "current", "legacy"), default="auto", help="default: auto")
    return parser


_EXAMPLES = {
    "decode": "example: bare decode --schema stream.bare --type PushRequest 80010568656c6c6f",
    "encode": 'example: bare encode --schema stream.bare --type Init \'{"stream_name": "events"}\'',
    "check": "example: bare check stream.bare specification.md",
    "format": "example: bare format stream.bare --write",
}


def _decode(options: argparse.Namespace) -> None:
    schema = _schema(options)
    if options.raw:
        if options.message != "-":
            raise _Failure("--raw reads standard input: leave HEX out", WRONG_USAGE)
        message = sys.stdin.buffer.read()
    else:
        text = _argument(options.message)
        try:
            message = bytes.fromhex(text)
        except ValueError as error:
            raise _Failure("the message is not hexadecimal: give digits, or --raw", WRONG_USAGE) from error
    value = schema.decode(options.type, message)
    form = json_form.to_json(schema.models[options.type], value)
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    sys.stdout.write(json.dumps(form, indent=2, ensure_ascii=ascii_only) + "\n")


def _encode(options: argparse.Namespace) -> None:
    schema = _schema(options)
    text = _argument(options.value)
    try:
        form = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _Failure(f"the value is not JSON: {error}") from error
    message = schema.encode(options.type, json_form.from_json(schema.models[options.type], form))
    if options.raw:
        sys.stdout.buffer.write(message)
    else:
        sys.stdout.write(message.hex() + "\n")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _check(options: argparse.Namespace) -> None:
    for file in options.files:
        schemas = _schemas(file, options.dialect)
        count = sum(len(list(schema)) for schema in schemas)
        where = f", {len(schemas)} blocks" if file.suffix == MARKDOWN_SUFFIX else ""
        sys.stdout.write(f"{file}: {count} types{where}\n")


def _format(options: argparse.Namespace) -> None:
    standard = options.file == "-"
    if standard and options.write:
        raise _Failure("--write needs a file", WRONG_USAGE)
    name = "standard input" if standard else options.file
    text = _argument("-") if standard else _text(pathlib.Path(options.file))
    try:
        formatted = format_document(parse(text, options.dialect))
    except SchemaError as error:
        raise _at(name, error) from error
    if options.write:
        if formatted != text:
            _replace(pathlib.Path(options.file).resolve(), formatted)
    else:
        sys.stdout.write(formatted)


def _replace(file: pathlib.Path, text: str) -> None:
    # The text is written beside the file first, so that a full disk does not destroy the old schema.
    part = file.with_name(f".{file.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        shutil.copymode(file, part)
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _argument(text: str) -> str:
    if text != "-":
        return text
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise _Failure("standard input is not UTF-8 text") from error


def _text(file: pathlib.Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _Failure(f"{file} is not UTF-8 text") from error


def _at(name: object, error: SchemaError) -> _Failure:
    return _Failure(f"{name}:{error.line}:{error.column}: {error.what}")


def _schemas(file: pathlib.Path, dialect: Any) -> list[Schema]:
    text = _text(file)
    try:
        if file.suffix == MARKDOWN_SUFFIX:
            found = load_blocks(text, dialect=dialect)
            if not found:
                raise _Failure(f"{file} has no schema: mark its block with `bare`")
            return found
        return [load(text, dialect=dialect)]
    except SchemaError as error:
        raise _at(file, error) from error


def _schema(options: argparse.Namespace) -> Schema:
    """Returns the schema of the file `options.schema` that defines `options.type`. Raises _Failure."""
    schemas = _schemas(options.schema, options.dialect)
    if options.block is not None:
        if not 1 <= options.block <= len(schemas):
            raise _Failure(f"--block must be from 1 to {len(schemas)} for {options.schema}", WRONG_USAGE)
        schemas = schemas[options.block - 1 : options.block]
    numbered = list(enumerate(schemas, options.block or 1))
    # A block that defines the type is preferred to a block that takes the definition from an earlier block.
    own = [(number, schema) for number, schema in numbered if options.type in list(schema)]
    if not own and options.block is not None:
        own = [(number, schema) for number, schema in numbered if options.type in schema]
    if not own:
        raise _Failure(f"{options.schema} does not define {options.type}", WRONG_USAGE)
    # Several blocks may define the type if their definitions mean the same.
    meanings = [_meaning(schema, options.type) for _, schema in own]
    if any(meaning != meanings[0] for meaning in meanings):
        numbers = ", ".join(str(number) for number, _ in own)
        raise _Failure(
            f"{options.type} differs between blocks {numbers} of {options.schema}: choose with --block",
            WRONG_USAGE,
        )
    return own[0][1]


def _meaning(schema: Schema, name: str) -> dict[str, Definition]:
    """Returns the definitions of a type, and of all types that it directly or indirectly uses, by name."""
    meant: dict[str, Definition] = {}
    waiting = [name]
    while waiting:
        definition = schema.scope[waiting.pop()]
        if definition.name not in meant:
            meant[definition.name] = definition
            waiting += [used.name for used in names_in(definition.type)]
    return meant
