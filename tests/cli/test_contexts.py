"""Named nodes: what is kept, what is refused, and which node a command talks to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ockam.errors import InvalidAddress
from stream_node.cli import contexts
from stream_node.cli.contexts import (
    DEFAULT_NODE,
    ContextError,
    Contexts,
    Target,
    add_context,
    load_contexts,
    remove_context,
    resolve_target,
    save_contexts,
    use_context,
)
from tests.cli.command import CommandLine
from tests.cli.promised import promised

OFFICE, LAB = Target("10.0.0.5:4000"), Target("lab:4000", ("inner:4001",))
BOTH = Contexts("office", {"office": OFFICE, "lab": LAB})


@pytest.fixture
def own_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts for this test alone."""
    monkeypatch.setattr(contexts, "contexts_file", lambda: tmp_path / "contexts")
    return contexts.contexts_file()


def test_contexts_are_added_listed_used_and_removed(command: CommandLine) -> None:
    assert command("context", "list", "--json").read(promised.ContextsListed).contexts == []
    office = command("context", "add", "office", "10.0.0.5:4000", "--json").read(promised.ContextAdded)
    usual = "stream_service", None, "head", None, None, None, None, None
    assert office == promised.ContextAdded("office", "10.0.0.5:4000", [], True, *usual)
    lab = command("context", "add", "lab", "lab:4000", "--via", "inner:4001", "--json").read(promised.ContextAdded)
    assert lab == promised.ContextAdded("lab", "lab:4000", ["inner:4001"], False, *usual)
    assert command("context", "use", "lab", "--json").read(promised.ContextUsed).current == "lab"
    assert command("context", "list").text == "*  lab     lab:4000 inner:4001\n   office  10.0.0.5:4000\n"
    removed = command("context", "remove", "lab", "--json").read(promised.ContextRemoved)
    assert removed == promised.ContextRemoved("lab", None)
    assert command("context", "use", "--json").read(promised.ContextUsed).current is None
    assert command("context", "list").text == "   office  10.0.0.5:4000\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["use", "gone"], "there is no context 'gone', and no other one"),
        (["remove", "gone"], "there is no context 'gone'"),
        (["add", "x", "no where"], "'no where' is not HOST:PORT"),
        (["add", "x", "a:1", "--via", "b:c"], "'b:c' is not HOST:PORT"),
        (["add", "", "a:1"], "cannot name a context"),
        (["add", "x" * 65, "a:1"], "cannot name a context"),
    ],
)
def test_what_cannot_be_is_wrong_usage(command: CommandLine, arguments: list[str], says: str) -> None:
    assert says in command("context", *arguments).failed(2)
    assert command("context", "list").text == "no contexts\n"


def test_a_name_is_replaced_only_when_told() -> None:
    with pytest.raises(ContextError, match="say --replace"):
        add_context(BOTH, "lab", OFFICE)
    assert add_context(BOTH, "lab", OFFICE, replace=True) == Contexts("office", {"office": OFFICE, "lab": OFFICE})
    assert add_context(BOTH, "new", LAB, use=True).current == "new"
    with pytest.raises(InvalidAddress):
        add_context(BOTH, "new", Target("lab:"))


def test_removing_another_one_leaves_the_one_in_use() -> None:
    assert remove_context(BOTH, "lab") == Contexts("office", {"office": OFFICE})
    assert use_context(BOTH, None).current is None


@pytest.mark.parametrize(
    ("node", "context", "via", "target"),
    [
        (None, None, [], OFFICE),
        (None, "lab", [], LAB),
        (None, "lab", ["other:1"], Target("lab:4000", ("other:1",))),
        ("here:1", None, [], Target("here:1")),
        ("here:1", None, ["there:2"], Target("here:1", ("there:2",))),
    ],
)
def test_which_node_a_command_talks_to(
    own_contexts: Path, node: str | None, context: str | None, via: list[str], target: Target
) -> None:
    save_contexts(own_contexts, BOTH)
    assert resolve_target(node, context, via) == target


def test_without_contexts_it_is_the_default(own_contexts: Path) -> None:
    assert resolve_target(None, None, ()) == Target(DEFAULT_NODE)
    with pytest.raises(ContextError, match="and no other one"):
        resolve_target(None, "lab", ())


def test_two_nodes_at_once_are_refused(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "leave one out" in command("pull", "x", "--node", "a:1", "--context", "lab").failed(2)
    monkeypatch.setenv("STREAM_NODE_ADDRESS", "a:1")
    assert "leave one out" in command("pull", "x", "--context", "lab").failed(2)


def test_the_context_in_use_is_where_a_command_goes(command: CommandLine) -> None:
    command("context", "add", "nobody", "127.0.0.1:1")
    assert "cannot reach a node at 127.0.0.1:1" in command("pull", "x").failed(3)
    assert "cannot reach a node at 127.0.0.1:2" in command("pull", "x", "--node", "127.0.0.1:2").failed(3)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "cannot be read"),
        (b'{"targets": {"x": {"address": "a:1", "password": "p"}}}', "unknown field `password`"),
        (b'{"current": "x", "targets": {}}', "uses a context 'x' that it does not have"),
    ],
)
def test_a_file_that_is_not_ours_is_left_alone(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "contexts"
    file.write_bytes(content)
    with pytest.raises(ContextError, match=says):
        load_contexts(file)
    assert file.read_bytes() == content


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ContextError, match="cannot write the contexts"):
        save_contexts(tmp_path / "file" / "contexts", BOTH)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ContextError, match="cannot write the contexts"):
        save_contexts(tmp_path / "folder", BOTH)
    with pytest.raises(ContextError, match="cannot read the contexts"):
        load_contexts(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"file", "folder"}
