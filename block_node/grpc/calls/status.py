"""`serverStatus` and `serverStatusDetail`: which blocks the node has, and which one it needs next."""

from __future__ import annotations

import re
from collections.abc import Iterable

from block_node.grpc.messages import WireMessage, block_or_none, write_message
from block_node.persist.ranges import BlockRanges
from block_node.read.services import RANGES_MAX, ReadServices

_VERSION = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?[.-]?([^+]*)(?:\+(.*))?")

STREAM_VERSION = (0, 78, 0)
"""The version of the block stream that the sources of `proto/block_node.proto` declare."""


def write_status(read: ReadServices) -> bytes:
    available = read.blocks.store.available
    return write_message(
        "ServerStatusResponse",
        {
            "first_available_block": block_or_none(available.first),
            "last_available_block": block_or_none(available.last),
            # Fixed in the reference block node; it means nothing here.
            "only_latest_state": True,
            "next_expected_block": _next_expected(read),
        },
    )


def write_detail(read: ReadServices) -> bytes:
    store = read.blocks.store
    version = _version_message(read.version)
    major, minor, patch = STREAM_VERSION
    plugins = [
        {"plugin_id": name, "plugin_software_version": _version_message(each)}
        for name, each in sorted(read.plugins().items())
    ]
    detail: WireMessage = {
        "version_information": {
            "stream_proto_version": {"major": major, "minor": minor, "patch": patch},
            "block_node_version": version,
            "installed_plugin_versions": plugins,
        },
        "available_ranges": list(_range_messages(store.available)),
        "stored_ranges": list(_range_messages(store.ever_stored)),
    }
    if read.address_book is not None:
        detail["node_address_book"] = read.address_book
    return write_message("ServerStatusDetailResponse", detail)


def _next_expected(read: ReadServices) -> int:
    number = read.next_expected()
    if number is None:
        # Publishing has not started yet, but the stored blocks are known.
        last = read.blocks.store.ever_stored.last
        return read.blocks.first_block if last is None else last + 1
    return number


def _range_messages(ranges: BlockRanges) -> Iterable[WireMessage]:
    return ({"range_start": each.first, "range_end": each.last} for each in list(ranges)[-RANGES_MAX:])


def _version_message(text: str) -> WireMessage:
    match = _VERSION.fullmatch(text)
    if match is None:
        return {"pre": text}
    major, minor, patch, pre, build = match.groups()
    numbers = {"major": int(major), "minor": int(minor or 0), "patch": int(patch or 0)}
    return {**numbers, "pre": pre or "", "build": build or ""}
