"""The pages about errors, protocol messages, Python names and the site are whole, and say what the program does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import typer

import bare
from bare.model import BareType, EnumType, NamedType, parts
from bare.resolve import resolve
from stream_node.cli.app import build
from stream_node.node.config import Config
from tests.style.tree import ROOT, package_files, plant
from tools import reference_errors, reference_events, reference_protocols, reference_site
from tools.reference_protocols import MODULES, Defined, all_protocols

PROTOCOLS = (ROOT / "docs/protocols.md").read_text(encoding="utf-8")
BARE_BLOCK = re.compile(r"^```bare\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"`stream-node ([a-z]+(?: [a-z]+)?)[^`]*`")
OPTION = re.compile(r"`(--[a-z-]+)[^`]*`")
SETTING = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")


def test_every_error_that_can_be_seen_has_a_remedy() -> None:
    assert list(reference_errors.problems()) == []
    assert {"stream_client.LeaseLost", "stream_storage.WalDamaged", "spark_export.ExportError"} <= {
        error.name for error in reference_errors.all_errors()
    }


def test_remedies_name_commands_and_options_that_exist() -> None:
    text = "\n".join(reference_errors.remedies().values())
    root = typer.main.get_command(build())
    options = set()
    commands = {}
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        commands[name] = command
        commands |= {f"{name} {below}": each for below, each in getattr(command, "commands", {}).items()}
    for command in commands.values():
        options |= {option for parameter in command.params for option in parameter.opts}
    assert {found for found in COMMAND.findall(text)} <= commands.keys()
    assert set(OPTION.findall(text)) <= options
    known = set(Config.__struct_fields__) | {"_corrupt_record", "_problem", "timeout_s"}
    assert set(SETTING.findall(text)) <= known


ERRORS = '''
class LinkError(Exception):
    """The base class of all errors of links."""
class Broken(LinkError):
    """Error: the link is broken.

    at: where.
    """
class _Inner(LinkError): ...
class Plain: ...
'''


def test_an_error_without_a_remedy_and_a_remedy_without_an_error_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_errors, "INTERNAL", {"links.Gone": "why"})
    plant(tmp_path, {"links/errors.py": ERRORS, "tools/remedies.toml": '[links]\nOther = "Mend it."\n'})
    assert [error[:2] for error in reference_errors.all_errors(tmp_path)] == [
        ("links.LinkError", "The base class of all errors of links."),
        ("links.Broken", "The link is broken."),
    ]
    assert list(reference_errors.problems(tmp_path)) == [
        "links.Broken has no remedy in tools/remedies.toml",
        "links.Other has a remedy and is no error",
        "links.Gone is listed as internal and is no error",
    ]


LOGGING = """
class Admin:
    @property
    def _log(self):
        return logger.bind(stream=1)
    def note(self, error):
        known = {"deleted": 1, **message.origin.who}
        (self._log.debug if error else self._log.info)("gone", **known, reason=error)
        log = logger.info if error else logger.warning
        log("turned", **self.summary())
        lines.log(logger.error, "late", exc_info=error)
        log_other("not an event")
    def summary(self):
        return {"seconds": 1}
"""


def test_events_are_found_with_all_levels_and_fields(tmp_path: Path) -> None:
    """Goal: no event and no field is left out of the page. Method: the ways to log that the packages have."""
    plant(tmp_path, {"ockam/admin.py": LOGGING})
    gone = ("stream", "deleted", "identity", "peer", "reason")
    assert sorted(reference_events.all_calls(tmp_path)) == [
        ("gone", "debug", gone),
        ("gone", "info", gone),
        ("late", "error", ()),
        ("turned", "info", ("seconds",)),
        ("turned", "warning", ("seconds",)),
    ]


def test_no_module_with_a_protocol_is_forgotten() -> None:
    """Method: modules that make a protocol are looked for by their text."""
    making = re.compile(r"^\w+ = Protocol\(", re.MULTILINE)
    found = [path for path in package_files(ROOT) if making.search(path.read_text(encoding="utf-8"))]
    assert {str(path.relative_to(ROOT)) for path in found} == {f"{name.replace('.', '/')}.py" for name in MODULES}


@pytest.mark.parametrize("number", range(len(all_protocols())), ids=lambda number: all_protocols()[number].place)
def test_a_schema_on_the_page_is_that_of_the_bytes(number: int) -> None:
    """Method: the page's text is read by the parser of schemas, and compared with what the node encodes, by type."""
    defined: Defined = all_protocols()[number]
    schema = bare.schema.load(BARE_BLOCK.findall(PROTOCOLS)[number])
    for name, node in defined.messages.items():
        compare(node, schema.models[name], name)


def compare(node: BareType, shown: BareType, path: str) -> None:
    """Raises AssertionError where two types do not have the same bytes."""
    while isinstance(shown, NamedType):
        assert shown.target is not None
        shown = shown.target
    if reference_protocols.is_empty(node):
        assert type(shown).__name__ == "VoidType", path
        return
    assert type(node) is type(shown), path
    if isinstance(node, EnumType) and isinstance(shown, EnumType):
        members = [{value: member.name for value, member in each.by_value.items()} for each in (node, shown)]
        assert members[0] == members[1], path
        return
    for attribute in ("signed", "name", "length"):
        assert getattr(node, attribute, None) == getattr(shown, attribute, None), path
    for attribute in ("fields", "members"):
        keys = [[key for key, _ in getattr(each, attribute, ())] for each in (node, shown)]
        assert keys[0] == keys[1], path
    for place, (part, other) in enumerate(zip(parts(node), parts(shown), strict=True)):
        compare(part, other, f"{path}.{place}")


def test_a_difference_of_one_type_is_found() -> None:
    right = resolve(bare.UInt)
    compare(right, bare.schema.load("type A uint").models["A"], "A")
    for wrong in ("int", "u64", "optional<uint>"):
        with pytest.raises(AssertionError):
            compare(right, bare.schema.load(f"type A {wrong}").models["A"], "A")


def test_the_page_for_programs_has_every_public_name() -> None:
    import block_node.client
    import cardinal_streams
    import stream_client

    for package in (stream_client, block_node.client, cardinal_streams):
        assert reference_site.public_names(package.__name__) == package.__all__


def test_the_page_for_programs_explains_each_name_where_one_reads_it() -> None:
    """Goal: the page can be read in the repository. Method: what `inspect` says of the same names, looked for in it."""
    import stream_client

    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    assert ":::" not in page
    for name in stream_client.__all__:
        value = getattr(stream_client, name)
        if not inspect.isclass(value):
            continue
        (section,) = re.findall(rf"^## stream_client$.*?^### {name}\n(.*?)^##", page, re.DOTALL | re.MULTILINE)
        first = (inspect.getdoc(value) or "").splitlines()[0]
        assert first in section, name
        own = [each for each in vars(value) if inspect.isfunction(vars(value)[each]) and each[0] != "_"]
        assert [each for each in own if f"**{name}.{each}**" not in section] == [], name


def test_llms_txt_has_a_line_for_each_page() -> None:
    text = (ROOT / "docs/llms.txt").read_text(encoding="utf-8")
    found = re.findall(r"^- \[.+\]\((\S+)\): \S.*$", text, re.MULTILINE)
    assert found == [page for pages in reference_site.nav().values() for page in pages]
    assert all((ROOT / "docs" / page).is_file() for page in found)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("# A title\n\nOne\nsentence. Two.\n\nMore.\n", ("A title", "One sentence.")),
        ("# A\n\nSee [the log](log.md#x). It.", ("A", "See the log.")),
    ],
)
def test_a_summary_is_the_first_sentence(tmp_path: Path, page: str, expected: tuple[str, str]) -> None:
    plant(tmp_path, {"a.md": page})
    assert reference_site.summary(tmp_path / "a.md") == expected
