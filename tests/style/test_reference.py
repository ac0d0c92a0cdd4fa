"""The pages of the reference are complete, and what `tools/reference.py` makes of the program."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from stream_node.node.config import ENVIRONMENT_PREFIX, Config
from tests.style.tree import ROOT, plant
from tools import reference

COMMANDS = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs/settings.md").read_text(encoding="utf-8")


def test_the_pages_are_what_the_program_says() -> None:
    assert reference.stale_pages() == [], "run python tools/reference.py"


def test_every_setting_has_its_row_with_default_unit_text_and_variable() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in SETTINGS.splitlines() if line[:3] == "| `"
    ]
    assert [row[0] for row in rows] == [f"`{field.name}`" for field in msgspec.structs.fields(Config)]
    assert [row[5] for row in rows] == [f"`{ENVIRONMENT_PREFIX}{field.name.upper()}`" for field in _fields()]
    assert all(all(row) and row[3].endswith(".") for row in rows)


def _fields() -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(Config)


def test_settings_that_few_need_stand_last() -> None:
    assert reference.settings_groups()[-1].name == "For one specification, or for tests"
    assert {"error_delay_s", "header_timeout_s"} <= reference.settings_groups()[-1].texts.keys()


@pytest.mark.parametrize(
    ("name", "default", "unit"),
    [
        ("listen", "`127.0.0.1:4000`", "text"),
        ("data_dir", "none", "text"),
        ("peer_memory_bytes_max", "`128MiB`", "bytes"),
        ("block_publish_idle_s_max", "`2h`", "seconds"),
        ("idle_timeout_s", "none", "seconds"),
        ("retention_messages", "none", "messages"),
        ("block_levels", "`structure,merkle,chain`", "list"),
        ("block_node", "`true`", "true or false"),
        ("backfill_last_block_to_store", "`-1`", "number"),
    ],
)
def test_a_default_is_told_as_one_types_it(name: str, default: str, unit: str) -> None:
    field = next(field for field in _fields() if field.name == name)
    if name != "data_dir":
        assert reference.default_in_words(field) == default
    assert reference.unit_of(field) == unit


def test_every_command_has_its_section_and_its_line_in_the_overview() -> None:
    names = [command.name for command in reference.all_commands()]
    assert {"serve", "stream list", "block backfill run"} <= set(names)
    assert re.findall(r"^### (.*)$", COMMANDS, re.MULTILINE) == names
    assert re.findall(r"^\| \[`(.*)`\]\(#.*\) \| .*\. \|$", COMMANDS, re.MULTILINE) == names


def test_every_command_shows_an_example() -> None:
    for section in COMMANDS.split("\n### ")[1:]:
        assert re.search(r"```sh\n(.*\n)*?.*stream-node " + re.escape(section.splitlines()[0]), section), section


def test_a_stale_page_is_found_and_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two pages are enough to see that only the stale one is named; those made from all sources take seconds.
    pages = {name: reference.PAGES[name] for name in ("docs/commands.md", "docs/settings.md")}
    monkeypatch.setattr(reference, "PAGES", pages)
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in pages}
    plant(tmp_path, {**texts, "docs/settings.md": SETTINGS.replace("`128MiB`", "`1MiB`")})
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    assert reference.stale_pages() == ["docs/settings.md"]
    assert reference.stale_pages(write=True) == ["docs/settings.md"]
    assert (reference.stale_pages(), (tmp_path / "docs/settings.md").read_text()) == ([], SETTINGS)
