"""Goal: when a member is lost, exactly the clients that wait for an answer of it lose their connections.

Method: the object that notes the requests to one member, with the payloads of real requests and answers.
"""

from __future__ import annotations

from ockam.actors.address import local
from ockam.actors.message import Message, Origin
from stream_node.fleet.cluster.unanswered import UnansweredRequests
from stream_service.extensions import PACKED_PULL, FromIndex, PackedPull
from stream_service.page_codec import encode_packed_page

CONNECTION = local("TCP_1")
ROUTE = (CONNECTION, local("reader"))
PEER = Origin("tcp", peer="client:1")


def test_a_consumer_that_has_got_a_part_of_its_page_still_waits() -> None:
    """Claim: a consumer that waits at the end of a stream gets its page in parts, and waits until the last one. Method:
    the member is lost after a part that another one follows, and after the last part."""
    pull = Message((local("s"),), ROUTE, PACKED_PULL.encode_request(PackedPull(1, FromIndex(0), 10, 0, 5_000)), PEER)
    for more, ended in ((True, [CONNECTION]), (False, [])):
        requests = UnansweredRequests(lambda connection: True)
        requests.sent(pull, opens_session=False)
        requests.answered([Message(ROUTE, (), part(0, more=True)), Message(ROUTE, (), part(1, more=more))])
        assert requests.take() == (ended, [])


def part(index: int, *, more: bool) -> bytes:
    return encode_packed_page(1, 0, index + 1, index + 1, 9, [(index, b"x", 2, None, None)], more=more)
