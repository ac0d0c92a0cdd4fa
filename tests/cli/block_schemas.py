"""What `--json` of the commands of `block` promises: these fields, of these types, and no other."""

from __future__ import annotations

from tests.cli.schemas import Strict


class BlocksPublished(Strict, frozen=True):
    published: int
    first_block: int
    last_block: int
    acknowledged: int
    seconds: float


class BlockRow(Strict, frozen=True):
    """Of block subscribe, one a line, and of block get."""

    block: int
    items: int
    bytes: int
    root: str
    file: str | None


class BlockStatus(Strict, frozen=True):
    first_available: int | None
    last_available: int | None
    next_expected: int | None
    available: list[tuple[int, int]]
    stored: list[tuple[int, int]]
    version: str | None
    plugins: dict[str, str]


class ChainGenerated(Strict, frozen=True):
    folder: str
    blocks: int
    first_block: int
    last_block: int
    items: int
    bytes: int
    address_book: str


BLOCK_SCHEMAS: dict[str, type[Strict]] = {
    "block publish": BlocksPublished,
    "block subscribe": BlockRow,
    "block get": BlockRow,
    "block status": BlockStatus,
    "block generate": ChainGenerated,
}
