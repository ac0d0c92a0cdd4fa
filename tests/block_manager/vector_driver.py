"""The operations of the block manager vectors, on the manager and on the naive model, with results as upstream
prints them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from block_manager import NULL_BLOCK_ID, Block, BlockManager, BlockManagerError, MemoryStore
from tests.block_manager.naive_model import NaiveModel

OURS = Path(__file__).parents[1] / "vectors" / "block_manager"


class Step(NamedTuple):
    """result: as upstream printed it; a panic begins with `PANIC`."""

    op: str
    result: str


def load(path: Path) -> dict[str, list[Step]]:
    scenarios = json.loads(path.read_bytes())["scenarios"]
    return {scenario["name"]: [_step(step) for step in scenario["steps"]] for scenario in scenarios}


def _step(step: dict[str, Any]) -> Step:
    result = step["result"]
    return Step(step["op"], result if isinstance(result, str) else f"PANIC {result['panic']}")


class Subject(Protocol):
    """What answers: the manager, or the model."""

    def put(self, blocks: list[Block]) -> None: ...
    def add_store(self, store_name: str, blocks: list[Block]) -> None: ...
    def persist(self, head: str, store_name: str) -> None: ...
    def contains(self, block_id: str) -> bool: ...
    def ref_block(self, block_id: str) -> None: ...
    def unref_block(self, block_id: str) -> bool: ...
    def branch(self, tip: str) -> list[str]: ...
    def branch_diff(self, tip: str, exclude: str) -> list[str]: ...
    def get(self, block_ids: Iterable[str]) -> list[str | None]: ...
    def stored(self, store_name: str) -> list[str]: ...
    def is_stored(self, block_id: str) -> bool: ...
    def count(self, block_id: str) -> tuple[int, int]: ...


class ManagerSubject:
    def __init__(self) -> None:
        self.manager = BlockManager()
        self.stores: dict[str, MemoryStore] = {}
        self.put = self.manager.put
        self.persist = self.manager.persist
        self.contains = self.manager.contains
        self.ref_block = self.manager.ref_block
        self.unref_block = self.manager.unref_block

    def add_store(self, store_name: str, blocks: list[Block]) -> None:
        store = MemoryStore(blocks)
        self.manager.add_store(store_name, store)
        self.stores[store_name] = store

    def branch(self, tip: str) -> list[str]:
        return [block.block_id for block in self.manager.branch(tip)]

    def branch_diff(self, tip: str, exclude: str) -> list[str]:
        return [block.block_id for block in self.manager.branch_diff(tip, exclude)]

    def get(self, block_ids: Iterable[str]) -> list[str | None]:
        return [None if block is None else block.block_id for block in self.manager.get(list(block_ids))]

    def stored(self, store_name: str) -> list[str]:
        return [block.block_id for block in self.stores[store_name].iter()]

    def is_stored(self, block_id: str) -> bool:
        return any(True for store in self.stores.values() for _ in store.get((block_id,)))

    def count(self, block_id: str) -> tuple[int, int]:
        count = self.manager.get_reference_count(block_id)
        return count.external, count.internal


class ModelSubject(NaiveModel):
    def get(self, block_ids: Iterable[str]) -> list[str | None]:
        return [block_id if self.find(block_id) else None for block_id in block_ids]

    def stored(self, store_name: str) -> list[str]:
        return [block.block_id for block in reversed(self.stores[store_name])]


class Driver:
    """Runs operations on a subject. Errors are results."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._seen: set[str] = set()
        self._guards: Counter[str] = Counter()

    def run(self, op: str) -> str:
        name, *arguments = op.split()
        try:
            result: str = getattr(self, f"_{name}")(*arguments)
        except BlockManagerError as error:
            return f"Err({type(error).__name__})"
        return result

    def _blocks(self, tokens: Iterable[str]) -> list[Block]:
        """Of `id:parent:number`; the parent NULL is the null id."""
        blocks = []
        for block_id, parent, number in (token.split(":") for token in tokens):
            blocks.append(Block(block_id, NULL_BLOCK_ID if parent == "NULL" else parent, int(number)))
            self._seen.add(block_id)
        return blocks

    def _put(self, *tokens: str) -> str:
        self._subject.put(self._blocks(tokens))
        return "Ok(())"

    def _store(self, store_name: str, *tokens: str) -> str:
        self._subject.add_store(store_name, self._blocks(tokens))
        return "Ok(())"

    def _persist(self, head: str, store_name: str) -> str:
        self._subject.persist(head, store_name)
        return "Ok(())"

    def _contains(self, block_id: str) -> str:
        return f"Ok({str(self._subject.contains(block_id)).lower()})"

    def _branch(self, tip: str) -> str:
        return ",".join(self._subject.branch(tip))

    def _diff(self, tip: str, exclude: str) -> str:
        return ",".join(self._subject.branch_diff(tip, exclude))

    def _get(self, *block_ids: str) -> str:
        return ",".join(block_id or "-" for block_id in self._subject.get(block_ids))

    def _storeiter(self, store_name: str) -> str:
        return ",".join(self._subject.stored(store_name))

    def _ref(self, block_id: str) -> str:
        """Upstream's reference is a guard; `dropref` drops it."""
        self._subject.ref_block(block_id)
        self._guards[block_id] += 1
        return "Ok"

    def _dropref(self, block_id: str) -> str:
        if not self._guards[block_id]:
            return "none"
        self._guards[block_id] -= 1
        self._subject.unref_block(block_id)
        return "Ok"

    def _unref(self, block_id: str) -> str:
        return f"Ok({str(self._subject.unref_block(block_id)).lower()})"

    def _dump(self) -> str:
        """`id:external:internal:place` of every block that is here, by id."""
        lines = []
        for block_id in sorted(filter(self._subject.contains, self._seen)):
            external, internal = self._subject.count(block_id)
            place = "-" if self._subject.is_stored(block_id) else "pool"
            lines.append(f"{block_id}:{external}:{internal}:{place}")
        return " ".join(lines)


def agrees(upstream: Step, ours: str) -> bool:
    """Whether the results are the same: errors of one kind, and dumps up to stored blocks that nobody holds.

    Upstream lists a stored block in a dump while it has a count for it; we list every block.
    """
    if upstream.result.startswith("Err("):
        kind = upstream.result.removeprefix("Err(").partition("(")[0].rstrip(")")
        return ours == f"Err({kind})"
    if upstream.op != "dump" or upstream.result in ("HANG", "not reached"):
        return ours == upstream.result
    theirs = set(upstream.result.split())
    listed_ids = {line.partition(":")[0] for line in theirs}
    mine = set(ours.split())
    implied = {line for line in mine if line.partition(":")[0] not in listed_ids and _is_unheld_and_stored(line)}
    return mine - implied == theirs


def _is_unheld_and_stored(line: str) -> bool:
    _, external, _, place = line.split(":")
    return external == "0" and place == "-"
