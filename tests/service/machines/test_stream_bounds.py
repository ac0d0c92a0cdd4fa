"""Goal: nobody but `StreamBounds` changes what the worker of a stream knows of its bounds."""

from __future__ import annotations

import ast
from pathlib import Path

from stream_service.workers.stream_bounds import StreamBounds
from stream_storage.history import HistoryEntry

ROOT = Path(__file__).parents[3]
NAMES = ("bounds", "_bounds")
"""By these names the product knows the bounds of a stream."""


def test_no_other_module_writes_an_attribute_of_the_bounds() -> None:
    writes, modules = [], [*ROOT.glob("stream_service/**/*.py"), *ROOT.glob("stream_node/**/*.py")]
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
                continue
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in NAMES and node.attr in StreamBounds.__slots__:
                writes.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.attr}")
    assert len(modules) > 100
    assert not writes


def test_a_history_that_a_change_has_made_is_not_replaced_by_one_that_was_read_before() -> None:
    bounds = StreamBounds(1, 0, 0)
    read, made = (HistoryEntry(1, 0),), (HistoryEntry(2, 5),)
    assert bounds.learn_history(read) is read
    bounds.set_history(made)
    assert bounds.learn_history(read) is made
