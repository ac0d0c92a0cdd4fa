"""Goal: an identity has one text, and nothing counts as proved by itself. Method: values."""

from __future__ import annotations

import pytest

from ockam.actors.address import LOCAL, Address, local
from ockam.actors.message import HERE, Message, Origin
from ockam.identity.identity import ANONYMOUS, NODE, Identity


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        (ANONYMOUS, "anonymous"),
        (NODE, "local:node"),
        (Identity("certificate", "alice"), "certificate:alice"),
        (Identity("token", "spark"), "token:spark"),
        (Identity("channel", "I1025"), "channel:I1025"),
    ],
)
def test_an_identity_has_the_text_that_rules_use(identity: Identity, text: str) -> None:
    assert str(identity) == text


def test_an_origin_is_anonymous_unless_something_was_proved() -> None:
    """A connection that proves nothing must never count as a worker of the node."""
    assert Origin("tcp").identity == ANONYMOUS != NODE == HERE.identity
    message = Message((local("streams"),), (Address(LOCAL, b"local:node"),), b"", Origin("tcp"))
    assert message.origin.identity == ANONYMOUS
