"""The command `python -m bare`: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import pathlib
import resource
import subprocess
import sys

import pytest

from bare import cli

SCHEMA = """\
type Status enum { OK ERROR }
type All struct {
    number: uint
    text: str
    raw: data[2]
    status: Status
    maybe: optional<f64>
    deep: optional<optional<u8>>
    some: list<bool>
    by_name: map<str><u8>
    by_number: map<u8><data>
    tagged: union { int | uint }
    plain: union { Status | str | void }
}
type Loose union { list<Loose> | f32 }
"""

FORM = {
    "number": 300,
    "text": "é",
    "raw": "00ff",
    "status": "ERROR",
    "maybe": "-Infinity",
    "deep": {"some": None},
    "some": [True, False],
    "by_name": {"a": 1},
    "by_number": [[1, "ff"], [2, ""]],
    "tagged": {"tag": 1, "value": 5},
    "plain": {"tag": 2, "value": None},
}

MESSAGE = "ac0202c3a900ff0101000000000000f0ff010002010001016101020101ff0200010502"

MARKDOWN = """\
```
type Init { name: string }
type Request { init: Init }
```
```
type Init { name: string number: uint }
type Same u8
```
```
type Same u8
type Request { init: Init }
```
"""


class Run:
    """One directory with the schema in it, and the means to run the command there."""

    def __init__(self, directory: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
        self.directory = directory
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.schema = directory / "all.bare"
        self.schema.write_text(SCHEMA, encoding="utf-8")
        self.markdown = directory / "all.md"
        self.markdown.write_text(MARKDOWN, encoding="utf-8")

    def __call__(self, *arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = cli.main([str(argument) for argument in arguments])
        return code, *self._capsys.readouterr()


@pytest.fixture
def run(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, capsys, monkeypatch)


def test_a_message_is_shown_as_json_and_made_from_it(run: Run) -> None:
    target = ("--schema", run.schema, "--type", "All")
    code, out, err = run("decode", *target, MESSAGE)
    assert (code, json.loads(out), err) == (0, FORM, "")
    assert run("encode", *target, json.dumps(FORM)) == (0, MESSAGE + "\n", "")


def test_standard_input_is_read_where_no_argument_is_given(run: Run) -> None:
    target = ("--schema", run.schema, "--type", "Status")
    assert run("decode", *target, stdin=b" 01\n") == (0, '"ERROR"\n', "")
    assert run("decode", *target, "-", stdin=b"00") == (0, '"OK"\n', "")
    assert run("decode", *target, "--raw", stdin=b"\1") == (0, '"ERROR"\n', "")
    assert run("encode", *target, stdin=b'"OK"') == (0, "00\n", "")


def test_types_that_contain_themselves_have_a_form(run: Run) -> None:
    target = ("--schema", run.schema, "--type", "Loose")
    form = '{"tag": 0, "value": [{"tag": 1, "value": "NaN"}, {"tag": 1, "value": 0.5}]}'
    code, message, _ = run("encode", *target, form)
    assert (code, message) == (0, "0002010000c07f010000003f\n")
    assert json.loads(run("decode", *target, message)[1]) == json.loads(form)


# Command and type, argument, exit code, and the error.
FAILURES: list[tuple[str, str, str, int, str]] = [
    ("decode", "All", "ac0202ff", 1, "str needs 2 bytes and has 1 - at byte 3, $.text"),
    ("decode", "All", "xy", 2, "the message is not hexadecimal: give digits, or --raw"),
    ("decode", "None", "00", 2, "all.bare does not define None"),
    ("encode", "Status", "{", 1, "the value is not JSON: Expecting property name enclosed in double quotes: line 1"),
    ("encode", "Status", '{"a": 1, "a": 2}', 1, "the value is not JSON: a name stands twice in an object"),
    ("encode", "Status", '"GONE"', 1, "wants one of OK, ERROR, not 'GONE' - at $"),
    ("encode", "Loose", "5", 1, "wants an object with tag, value, not int - at $"),
    ("encode", "Loose", '{"tag": 5, "value": 5}', 1, "5 is not a tag of the union - at $"),
    ("encode", "Loose", '{"tag": true, "value": 5}', 1, "True is not a tag of the union - at $"),
    (
        "encode",
        "Loose",
        '{"tag": 1, "value": "many"}',
        1,
        "wants a number, NaN, Infinity or -Infinity, not 'many' - at $",
    ),
    ("encode", "Loose", '{"tag": 0, "value": [5]}', 1, "wants an object with tag, value, not int - at $[0]"),
    ("encode", "Loose", '{"tag": 0, "value": 5}', 1, "wants an array, not int - at $"),
]


@pytest.mark.parametrize(("command", "type_", "argument", "code", "error"), FAILURES)
def test_failures_are_one_line_on_standard_error(
    run: Run, command: str, type_: str, argument: str, code: int, error: str
) -> None:
    found, out, err = run(command, "--schema", run.schema, "--type", type_, argument)
    assert (found, out) == (code, "")
    assert error in err
    assert err.startswith(f"bare {command}: ")
    assert err.count("\n") == 1


# A field of All, a wrong form for it, and the error.
WRONG_FIELDS = [
    ("number", -1, "uint must be from 0 to 18446744073709551615 - at $.number"),
    ("raw", "0", "wants a string of hexadecimal digits - at $.raw"),
    ("raw", 5, "wants a string of hexadecimal digits - at $.raw"),
    ("raw", "00", "wants exactly 2 bytes, not 1 - at $.raw"),
    ("deep", {"none": 1}, "some is missing, none is unknown - at $.deep"),
    ("by_name", [], "wants an object, not list - at $.by_name"),
    ("by_number", [[1]], "wants an array of [key, value] - at $.by_number"),
    ("by_number", [[1, ""], [1, ""]], "map key is repeated - at $.by_number.keys[1]"),
    ("by_number", [[[], ""]], "a key cannot be an array or an object - at $.by_number.keys[0]"),
]


@pytest.mark.parametrize(("field", "form", "error"), WRONG_FIELDS)
def test_wrong_forms_are_refused_with_their_path(run: Run, field: str, form: object, error: str) -> None:
    value = json.dumps(FORM | {field: form})
    code, out, err = run("encode", "--schema", run.schema, "--type", "All", value)
    assert (code, out, err) == (1, "", f"bare encode: {error}\n")


def test_missing_and_unknown_fields_are_named(run: Run) -> None:
    form = {name: value for name, value in FORM.items() if name != "text"} | {"extra": 1}
    _, _, err = run("encode", "--schema", run.schema, "--type", "All", json.dumps(form))
    assert err == "bare encode: text is missing, extra is unknown - at $\n"


def test_wrong_usage_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("decode", "--schema", run.schema, "--type", "Status", "--raw", "00")
    assert (code, err) == (2, "bare decode: --raw reads standard input: leave HEX out\n")
    code, _, err = run("format", "-", "--write")
    assert (code, err) == (2, "bare format: --write needs a file\n")
    for arguments in ([], ["decode"], ["unknown"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
    capsys.readouterr()


def test_what_is_not_text_or_not_there_is_a_failure(run: Run) -> None:
    broken = run.directory / "broken.bare"
    broken.write_bytes(b"type A u8 # \xff")
    assert run("check", broken) == (1, "", f"bare check: {broken} is not UTF-8 text\n")
    missing = run.directory / "missing.bare"
    code, _, err = run("check", missing)
    assert code == 1
    assert err.startswith("bare check: ")
    assert str(missing) in err
    assert run("format", "-", stdin=b"\xff") == (1, "", "bare format: standard input is not UTF-8 text\n")


def test_check_counts_types_or_names_the_place(run: Run) -> None:
    assert run("check", run.schema) == (0, f"{run.schema}: 3 types\n", "")
    assert run("check", run.markdown) == (0, f"{run.markdown}: 6 types, 3 blocks\n", "")
    assert run("check", "--dialect", "current", run.markdown) == (
        1,
        "",
        f"bare check: {run.markdown}:2:11: this is the older syntax: write `struct {{ ... }}`, or read it as legacy\n",
    )
    empty = run.directory / "empty.md"
    empty.write_text("no schema")
    assert run("check", empty) == (1, "", f"bare check: {empty} has no schema: mark its block with `bare`\n")


def test_markdown_with_several_meanings_of_a_name_asks_for_the_block(run: Run) -> None:
    target = ("--schema", run.markdown, "--type")
    code, _, err = run("decode", *target, "Request", "0161")
    assert (code, err) == (
        2,
        f"bare decode: Request differs between blocks 1, 3 of {run.markdown}: choose with --block\n",
    )
    assert json.loads(run("decode", *target, "Request", "--block", 1, "0161")[1]) == {"init": {"name": "a"}}
    assert json.loads(run("decode", *target, "Request", "--block", 3, "016105")[1]) == {
        "init": {"name": "a", "number": 5}
    }
    assert json.loads(run("decode", *target, "Init", "--block", 3, "016105")[1]) == {"name": "a", "number": 5}
    assert run("decode", *target, "Same", "05") == (0, "5\n", "")
    code, _, err = run("decode", *target, "Same", "--block", 4, "05")
    assert (code, err) == (2, f"bare decode: --block must be from 1 to 3 for {run.markdown}\n")


def test_format_prints_or_replaces(run: Run) -> None:
    old = run.directory / "old.bare"
    old.write_text("type A { b: []string } # end", encoding="utf-8")
    formatted = "type A struct {\n    b: list<str>\n}  # end\n"
    assert run("format", old) == (0, formatted, "")
    assert run("format", "-", stdin=old.read_bytes()) == (0, formatted, "")
    assert old.read_text() != formatted
    assert run("format", old, "--write") == (0, "", "")
    assert old.read_text() == formatted
    assert run("format", old, "--dialect", "current") == (0, formatted, "")
    old.write_text("type A\n  b")
    assert run("format", old, "--write") == (1, "", f"bare format: {old}:2:3: a type is expected, not `b`\n")
    assert old.read_text() == "type A\n  b"


def test_the_command_runs_as_a_module(run: Run) -> None:
    """Once as a process: raw bytes out, and JSON on a terminal that knows only ASCII."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    target = ["--schema", str(run.schema), "--type"]

    def process(*arguments: str) -> bytes:
        command = [sys.executable, "-m", "bare", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, check=True, timeout=30).stdout

    assert process("encode", *target, "Status", '"ERROR"', "--raw") == b"\1"
    assert b'"text": "\\u00e9"' in process("decode", *target, "All", MESSAGE)


def test_a_full_disk_leaves_the_schema_that_is_to_be_formatted(run: Run) -> None:
    """Claim: `format --write` replaces a schema as a whole or not at all. Method: a limit on the size of files, which
    is lower than the schema's."""
    schema = run.directory / "old.bare"
    schema.write_text("type   A   u8\n", encoding="utf-8")
    there = sorted(run.directory.iterdir())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    try:
        code, _, err = run("format", schema, "--write")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert "File too large" in err
    assert schema.read_text(encoding="utf-8") == "type   A   u8\n"
    assert sorted(run.directory.iterdir()) == there
    assert run("format", schema, "--write") == (0, "", "")
    assert schema.read_text(encoding="utf-8") == "type A u8\n"
