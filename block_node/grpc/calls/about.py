"""The calls by which a peer asks about the door (health and reflection), and about the blocks of the node
(`serverStatus` and `serverStatusDetail`: which blocks it has, and which one it needs next)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from block_node.grpc.http2.connection import CallHandler, GrpcCall, SingleRequest
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from block_node.grpc.messages import HEALTH, WireMessage, block_or_none, read_message, write_message
from block_node.grpc.schema import ProtoFile
from block_node.persist.ranges import BlockRanges
from block_node.read.services import RANGES_MAX, ReadServices

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class HealthCall(SingleRequest):
    """The calls Check and Watch. serves: takes the name of a service ("": the whole door). Returns whether this service
    serves now, or None for an unknown name. watches: whether the call stays open until the node stops; the stop is the
    only change that is reported."""

    def __init__(self, call: GrpcCall, serves: Callable[[str], bool | None], *, watches: bool) -> None:
        self._call = call
        self._serves = serves
        self._watches = watches

    def answer(self, message: bytes) -> None:
        service = read_message("HealthCheckRequest", message, HEALTH).get("service", "")
        serves = self._serves(service)
        if serves is None and not self._watches:
            raise CallRefused(GrpcStatus.NOT_FOUND, f"there is no service {service[:100]}")
        self._say(SERVICE_UNKNOWN if serves is None else SERVING if serves else NOT_SERVING)
        if not self._watches:
            self._call.finish()

    def end(self) -> None:
        if self.has_asked:
            self._say(NOT_SERVING)
        self._call.finish(GrpcStatus.UNAVAILABLE, "the node stops")

    def _say(self, status: int) -> None:
        self._call.send(write_message("HealthCheckResponse", {"status": status}, HEALTH))


class ReflectionCall(CallHandler):
    """Describes the proto files of the door, so that a tool needs no files. own: the file of the reflection service
    itself. services: the full names of the services at this address."""

    def __init__(self, call: GrpcCall, files: Sequence[ProtoFile], own: ProtoFile, services: Collection[str]) -> None:
        self._call = call
        self._services = services
        self._files = files
        self._own = own

    def may_take(self) -> bool:
        return True

    def take(self, message: bytes) -> None:
        request = read_message("ServerReflectionRequest", message, self._own)
        answer = {"valid_host": request.get("host", ""), "original_request": request, **self._answer(request)}
        self._call.send(write_message("ServerReflectionResponse", answer, self._own))

    def half_closed(self) -> None:
        self._call.finish()

    def end(self) -> None:
        self._call.finish(GrpcStatus.UNAVAILABLE, "the node stops")

    def _answer(self, request: WireMessage) -> WireMessage:
        if "list_services" in request:
            return {"list_services_response": {"service": [{"name": name} for name in sorted(self._services)]}}
        symbol = request.get("file_containing_symbol")
        for file in self._files:
            if request.get("file_by_filename") == file.name or symbol in set(file.symbols()):
                return {"file_descriptor_response": {"file_descriptor_proto": [file.descriptor()]}}
        return {"error_response": {"error_code": int(GrpcStatus.NOT_FOUND), "error_message": "it is not here"}}


_VERSION = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?[.-]?([^+]*)(?:\+(.*))?")

STREAM_VERSION = (0, 78, 0)
"""The version of the block stream that the sources of `proto/block_node.proto` declare."""


def write_status(read: ReadServices) -> bytes:
    available, next_expected = read.blocks.store.available, read.next_expected()
    if next_expected is None:
        # Publishing has not started yet, but the stored blocks are known.
        last = read.blocks.store.ever_stored.last
        next_expected = read.blocks.first_block if last is None else last + 1
    return write_message(
        "ServerStatusResponse",
        {
            "first_available_block": block_or_none(available.first),
            "last_available_block": block_or_none(available.last),
            # The reference block node always sends this value. The field has no meaning for this node.
            "only_latest_state": True,
            "next_expected_block": next_expected,
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


def _range_messages(ranges: BlockRanges) -> Iterable[WireMessage]:
    return ({"range_start": each.first, "range_end": each.last} for each in list(ranges)[-RANGES_MAX:])


def _version_message(text: str) -> WireMessage:
    match = _VERSION.fullmatch(text)
    if match is None:
        return {"pre": text}
    major, minor, patch, pre, build = match.groups()
    numbers = {"major": int(major), "minor": int(minor or 0), "patch": int(patch or 0)}
    return {**numbers, "pre": pre or "", "build": build or ""}
