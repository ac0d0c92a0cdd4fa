"""Health and reflection: the calls by which a peer asks about the door itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from block_node.grpc.http2.connection import CallHandler, GrpcCall, SingleRequest
from block_node.grpc.http2.status import CallRefused, GrpcStatus
from block_node.grpc.messages import HEALTH, WireMessage, read_message, write_message
from block_node.grpc.schema import ProtoFile

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


class HealthCall(SingleRequest):
    """The calls Check and Watch. serves: returns whether the service with a name serves now ("": the door), or
    None if there is none. watches: whether the call stays open until the node stops; it reports no other change."""

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
