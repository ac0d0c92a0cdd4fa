"""The messages between a forwarding address, the client that has registered it, and senders that want an answer.

Ockam's own peers know none of these messages: they register by a plain payload, and get every message as it came
(`ockam.actors.forwarders.ForwardingService`)."""

from __future__ import annotations

import msgspec

import bare
from ockam.protocol import Protocol


# type RegisterRequest struct { request_id: uint  name: optional<str>  stores: bool  confirms: bool }
class RegisterRequest(msgspec.Struct, frozen=True):
    """A request for a forwarding address: `forward_to_` and `name`, or a random one if there is no name.

    stores: whether the node stores messages for the client while it is away. Such an address needs a name, and stays.
    confirms: whether the client takes its messages as a `ForwardDelivery`, and confirms each one."""

    request_id: bare.UInt
    name: str | None
    stores: bool
    confirms: bool


# type Registered struct { request_id: uint  address: data  stores: bool }
class Registered(msgspec.Struct, frozen=True):
    request_id: bare.UInt
    address: bytes
    stores: bool


# type ForwardRequest struct { request_id: uint  payload: data }
class ForwardRequest(msgspec.Struct, frozen=True):
    """A message to a forwarding address whose sender wants an answer. The client gets the payload alone."""

    request_id: bare.UInt
    payload: bytes


# type Forwarded struct { request_id: uint  stored: bool }
class Forwarded(msgspec.Struct, frozen=True):
    """The answer to a ForwardRequest. stored: whether the message is on disk, and will be delivered. If not, it was
    given to the client's connection, and is lost with it."""

    request_id: bare.UInt
    stored: bool


# type ForwardDelivery struct { index: uint  payload: data }
class ForwardDelivery(msgspec.Struct, frozen=True):
    """A stored message. It comes again, with the same index, after each registration until it is confirmed."""

    index: bare.UInt
    payload: bytes


# type Taken struct { index: uint }
class Taken(msgspec.Struct, frozen=True):
    """The client's confirm, sent to its address: the messages up to this index are processed, and may be deleted."""

    index: bare.UInt


REGISTER = Protocol("node/forward_register/1", RegisterRequest, Registered)
FORWARD = Protocol("node/forward/1", ForwardRequest, Forwarded)
DELIVERY = Protocol("node/forward_delivery/1", ForwardDelivery, Taken)
