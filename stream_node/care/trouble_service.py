"""The service `node_troubles`: answers with the present troubles of the node, in the words of the dashboard."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec.structs import replace

import bare
from ockam.actors.address import local
from ockam.actors.asker import ask_all
from ockam.actors.message import Message
from ockam.actors.worker import TaskAnsweringWorker
from ockam.identity.rules.rights import EVERY_NAME, Demand, Right
from ockam.protocol import Protocol

if TYPE_CHECKING:
    from stream_node.node.parts import NodeParts

ADDRESS = "node_troubles"
PART_ADDRESS = local("node_troubles_part")
"""The address at which one worker of several answers with its part."""
NOT_LOOKED = "a node without HTTP does not look for troubles; set http"


# type TroublesRequest struct { request_id: uint }
class TroublesRequest(msgspec.Struct, frozen=True):
    request_id: bare.UInt


# type ToldTrouble struct { kind: str  is_bad: bool  title: str  remedy: str }
class ToldTrouble(msgspec.Struct, frozen=True):
    """A `stream_node.care.trouble.Trouble` in an answer. is_bad: whether the node loses or refuses work."""

    kind: str
    is_bad: bool
    title: str
    remedy: str


# type Troubles struct { request_id: uint  worker: str  unknown: str  total: uint  troubles: list<ToldTrouble> }
class Troubles(msgspec.Struct, frozen=True):
    """The troubles, the worst first: of each kind at most `stream_node.care.trouble.LISTED_MAX`."""

    request_id: bare.UInt
    # The worker, or the member of a cluster, whose troubles these are; empty for all workers of a node together: then
    # the titles name workers.
    worker: str
    unknown: str  # why the troubles are not known; empty if they are
    total: bare.UInt  # the number of all troubles
    troubles: list[ToldTrouble]


TROUBLES = Protocol("node/troubles/1", TroublesRequest, Troubles)


class TroubleService(TaskAnsweringWorker):
    """The worker that answers at `node_troubles`. nursery: runs the tasks that find the troubles in the database."""

    def __init__(self, parts: NodeParts, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self._parts = parts

    def answer(self, message: Message) -> None:
        request = TROUBLES.decode_request(message.payload)
        joined = partial(self._join, message, request.request_id)
        if not ask_all(self, self._parts.remote_streams, PART_ADDRESS, message, TROUBLES, joined):
            self.start_task(partial(self._answer, message, request.request_id))

    def demand(self, message: Message) -> Demand:
        return Demand(Right.OPERATE | Right.ADMIN, EVERY_NAME)

    async def _answer(self, message: Message, request_id: int) -> None:
        unknown, total, told = NOT_LOOKED, 0, list[ToldTrouble]()
        if self._parts.find_troubles is not None:
            found = await self._parts.find_troubles()
            unknown, total = "", found.total
            listed = (each for same, _ in found.listed() for each in same)
            told = [ToldTrouble(each.kind, each.level == "bad", each.title, each.remedy) for each in listed]
        worker = "" if self._parts.remote_streams is None else self._parts.remote_streams.name
        self.reply(message, TROUBLES.encode_response(Troubles(request_id, worker, unknown, total, told)))

    def _join(self, message: Message, request_id: int, found: list[Troubles]) -> None:
        """Answers with the troubles of all workers. A title names the workers with the trouble, unless all have it."""
        workers: dict[ToldTrouble, list[str]] = {}
        for part in found:
            for each in part.troubles:
                workers.setdefault(each, []).append(part.worker)
        told = [
            each if len(names) == len(found) else replace(each, title=f"{' and '.join(names)}: {each.title}")
            for each, names in workers.items()
        ]
        unknown = next((part.unknown for part in found if part.unknown), "")
        total = sum(part.total for part in found) - sum(len(names) - 1 for names in workers.values())
        worst_first = sorted(told, key=lambda each: not each.is_bad)
        self.reply(message, TROUBLES.encode_response(Troubles(request_id, "", unknown, total, worst_first)))


def register_troubles(parts: NodeParts, nursery: trio.Nursery) -> None:
    parts.node.register([local(ADDRESS), PART_ADDRESS], lambda: TroubleService(parts, nursery))
