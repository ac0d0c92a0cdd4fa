"""Goal: a program can name every type that it meets. Method: the names in the signatures of all that both doors hand
on, read from the annotations as text, compared with what the doors hand on.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import contextlib
import datetime
import inspect
import pydoc
import re
import sys
import typing
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any, TypeVar

import msgspec
import pytest

import stream_client
from block_node.client import blocking as block_client
from stream_client import blocking

DOORS = pytest.mark.parametrize("door", [stream_client, blocking], ids=lambda door: door.__name__)
ELSEWHERE = (builtins, typing, collections.abc, contextlib, datetime)
"""Modules of the language, which have the other names."""

INNER = {
    "Conversation.ask",
    "LeaseMember.begin",
    "LeaseMember.resume",
    "SharedConsumer.is_held",
    "SavedIndexes.answered",
    "SavedIndexes.request",
    "SavedIndexes.begin",
    "SavedIndexes.resume",
    "Tls.layer",
}
"""Methods by which the parts of a client use each other. Their types are those of messages and of other parts."""

SESSIONS = {"Connected.session", "Stream.session", "StreamClient.session"}
"""The properties by which the blocking client hands on its session, which programs do not need."""

METHODS = [
    "converse",
    "correspondent",
    "create",
    "create_partitioned",
    "find_owner",
    "find_stream",
    "get_stream",
    "list_streams",
    "reached",
    "statistics",
]


@DOORS
def test_every_type_that_a_signature_names_is_public(door: ModuleType) -> None:
    missing: dict[str, str] = {}
    for place, types, known in _signatures(door):
        for name in _words(types):
            there = known.get(name)
            is_module = name in sys.stdlib_module_names or isinstance(there, ModuleType)
            if is_module or isinstance(there, TypeVar) or any(hasattr(module, name) for module in ELSEWHERE):
                continue
            # The signatures of the blocking client are those of the async one, and mean the classes of its own half.
            public = [getattr(each, name, None) for each in (door, stream_client)]
            if name not in (*door.__all__, *stream_client.__all__) or there not in (None, *public):
                missing.setdefault(place, name)
    assert missing.keys() - INNER - SESSIONS == set()
    assert door is blocking or missing.keys() == INNER


@DOORS
def test_help_of_a_client_shows_what_programs_use(door: ModuleType) -> None:
    text = pydoc.TextDoc().document(door.StreamClient)
    text = re.sub(".\x08", "", text)  # what is bold is written twice
    shown = [line.removeprefix(" |  ").removeprefix("async ") for line in text.splitlines()]
    methods = {line.partition("(")[0] for line in shown if line[:1].isalpha() and "(self" in line}
    assert sorted(methods) == METHODS
    assert "inherited" not in text or door is blocking


def test_signatures_of_blocking_functions_name_no_async_types() -> None:
    functions: list[Any] = [blocking.connect, block_client.connect, block_client.BlockClient.subscribe]
    functions += [block_client.BlockClient.publisher, block_client.BlockClient.get_parts]
    results = ["StreamClient", "BlockClient", "WholeBlocks", "BlockPublisher", "BlockPart"]
    for function, result in zip(functions, results, strict=True):
        assert inspect.signature(function).return_annotation == f"Iterator[{result}]"
        assert "async" not in (function.__doc__ or "async")


def _signatures(door: ModuleType) -> Iterator[tuple[str, Iterable[Any], dict[str, Any]]]:
    """The annotations of the public functions, of the public methods and fields of public classes, and of the
    constructors that programs call. Each with where it is, and with the names of its module.
    """
    public = {name: getattr(door, name) for name in door.__all__}
    # No program constructs what a method or function returns.
    made = {name for value in public.values() for each in _functions(value) for name in _words(_returned(each))}
    for name, value in public.items():
        for function in _functions(value):
            if function.__name__ != "__init__" or name not in made:
                yield function.__qualname__, function.__annotations__.values(), function.__globals__
        if isinstance(value, type) and issubclass(value, msgspec.Struct):
            yield name, value.__annotations__.values(), vars(sys.modules[value.__module__])


def _functions(value: Any) -> list[FunctionType]:
    """A public function itself; the public methods and properties, and the constructor, of a class."""
    found = [value]
    if isinstance(value, type):
        members = [each for name, each in inspect.getmembers(value) if name == "__init__" or name[0] != "_"]
        found = [each.fget if isinstance(each, property) else each for each in members]
    functions = [inspect.unwrap(each) for each in found if inspect.isfunction(each)]
    return [each for each in functions if isinstance(each, FunctionType)]


def _returned(function: FunctionType) -> list[Any]:
    return [function.__annotations__.get("return")]


def _words(annotations: Iterable[Any]) -> set[str]:
    trees = [ast.parse(each) for each in annotations if isinstance(each, str)]
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
