"""The answers to requests for new sessions, at a node that no longer serves the chain of its cluster. The publisher or
subscriber then opens another session. By then, the node to which it is connected knows which node serves the chain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from block_node.protocol import PUBLISH, PublishStatus, StreamEnded
from block_node.protocol_reading import SUBSCRIBE, SubscribeStatus, SubscriptionEnded, opening_of
from block_node.publish.service import SERVICE_ADDRESS
from block_node.read.services import SUBSCRIBE_ADDRESS
from ockam.actors.address import Address, local
from ockam.actors.message import Message

MOVED: Final = "another node of the cluster serves the chain from now on; open a new session"
_PUBLISHER_ENDS: Final = StreamEnded(PublishStatus.SUCCESS, None, None, MOVED)


def refuse_subscriber(message: Message) -> bytes:
    request, _ = opening_of(SUBSCRIBE.decode_request(message.payload))
    return SUBSCRIBE.encode_response(SubscriptionEnded(request.request_id, 0, SubscribeStatus.ERROR, MOVED))


BLOCK_OPENINGS: Final[dict[Address, Callable[[Message], bytes]]] = {
    local(SERVICE_ADDRESS): lambda message: PUBLISH.encode_response(_PUBLISHER_ENDS),
    local(SUBSCRIBE_ADDRESS): refuse_subscriber,
}
