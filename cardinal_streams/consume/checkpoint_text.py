"""Converts the checkpoint of a consumer to and from one JSON text. `Checkpoint` explains the fields.

    {"version": 1, "start": {"hash": "0x…", "number": 7, "weight": "0x…"},
     "position": "topic:partition=offset;…", "history": "",
     "open_reorgs": [{"hash": "0x…", "number": 5, "offset": 0, "is_begun": true, "removed_weight": "0x…"}],
     "finished_reorgs": [{"ancestor": "0x…"}],
     "read": "topic:partition=offset;…", "needed": ["0x…"], "created": "topic:partition=microseconds;…",
     "given_up": {"0x…": "topic:partition=offset;…"}, "first_number": 3}

Positions have the form of resumption tokens (see the module `resumption`). `created`, `given_up` and `first_number` can
be left out."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cardinal_streams.errors import CheckpointError, ResumptionError
from cardinal_streams.limits import HASH_BYTES, U64_MAX
from cardinal_streams.machines.events import Checkpoint, OpenReorg, Start
from cardinal_streams.resumption import format_token, parse_token

VERSION = 1
HashText = Annotated[str, msgspec.Meta(pattern=rf"\A0x[0-9a-f]{{{2 * HASH_BYTES}}}\Z")]
WeightText = Annotated[str, msgspec.Meta(pattern=r"\A0x[0-9a-f]{1,64}\Z")]


class StartText(msgspec.Struct, forbid_unknown_fields=True):
    hash: HashText
    number: int
    weight: WeightText


class OpenText(msgspec.Struct, forbid_unknown_fields=True):
    hash: HashText
    number: int
    offset: int
    is_begun: bool
    removed_weight: WeightText


class FinishedText(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    ancestor: HashText
    # Older programs wrote the first block of a finished reorg, which is not read any more.
    first_block: str = ""


class CheckpointText(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    start: StartText | None
    position: str
    history: str
    open_reorgs: list[OpenText]
    finished_reorgs: list[FinishedText]
    read: str = ""
    needed: list[HashText] = []
    created: str | msgspec.UnsetType = msgspec.UNSET
    given_up: dict[HashText, str] | msgspec.UnsetType = msgspec.UNSET
    first_number: int | msgspec.UnsetType = msgspec.UNSET


_READER = msgspec.json.Decoder(CheckpointText)


def format_checkpoint(checkpoint: Checkpoint) -> bytes:
    start = checkpoint.start
    return msgspec.json.encode(
        CheckpointText(
            version=VERSION,
            start=None if start is None else StartText(_hex(start.hash), start.number, hex(start.weight)),
            position=format_token(checkpoint.position),
            history=format_token(checkpoint.history),
            open_reorgs=[
                OpenText(_hex(each.hash), each.number, each.offset, each.is_begun, hex(each.removed_weight))
                for each in checkpoint.open_reorgs
            ],
            finished_reorgs=[FinishedText(_hex(ancestor)) for ancestor in checkpoint.finished_reorgs],
            read=format_token(checkpoint.read),
            needed=[_hex(hash_) for hash_ in checkpoint.needed],
            created=format_token(checkpoint.created) if checkpoint.created else msgspec.UNSET,
            given_up={_hex(hash_): format_token(each) for hash_, each in checkpoint.given_up.items()} or msgspec.UNSET,
            first_number=checkpoint.first_number or msgspec.UNSET,
        )
    )


def parse_checkpoint(text: bytes) -> Checkpoint:
    """Reads a checkpoint that `format_checkpoint` wrote. Raises `CheckpointError` for any other text."""
    try:
        found = _READER.decode(text)
        position, history, read = map(parse_token, (found.position, found.history, found.read))
        created = parse_token(found.created or "")
        given_up = {_hash(hash_): parse_token(token) for hash_, token in (found.given_up or {}).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, ResumptionError) as error:
        raise CheckpointError(f"the text is no checkpoint: {error}") from error
    if found.version != VERSION:
        raise CheckpointError(f"the checkpoint has version {found.version}; this program reads version {VERSION}")
    if sum(reorg.is_begun for reorg in found.open_reorgs) > 1:
        raise CheckpointError("the text is no checkpoint: two reorgs are begun at once")
    start = found.start
    open_reorgs = [
        OpenReorg(
            _hash(each.hash), _number(each.number), _number(each.offset), each.is_begun, int(each.removed_weight, 16)
        )
        for each in found.open_reorgs
    ]
    return Checkpoint(
        start=None if start is None else Start(_hash(start.hash), _number(start.number), int(start.weight, 16)),
        position=position,
        history=history,
        open_reorgs=tuple(open_reorgs),
        finished_reorgs=tuple(_hash(each.ancestor) for each in found.finished_reorgs),
        read=read,
        needed=tuple(map(_hash, found.needed)),
        first_number=_number(found.first_number or 0),
        created=created,
        given_up=given_up,
    )


def _hash(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _number(number: int) -> int:
    if not 0 <= number <= U64_MAX:
        raise CheckpointError(f"{number} is outside of 0 to {U64_MAX}")
    return number


def _hex(raw: bytes) -> str:
    return f"0x{raw.hex()}"
