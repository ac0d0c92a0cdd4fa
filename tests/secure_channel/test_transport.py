"""Goal: each message is opened at most once, in any order within the window, and no nonce is used twice.

Method: a model that is a set of numbers, random orders, losses and changed bits; and the end of the nonces.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_channel.errors import CiphertextRefused, NoncesUsedUp
from secure_channel.transport import NONCE_END, OVERHEAD_BYTES, REKEY_INTERVAL, WINDOW, Opener, Sealer

KEY = bytes(range(32))
SEALED = [(lambda sealer: [sealer.seal(b"%d" % number) for number in range(400)])(Sealer(KEY))][0]


def reason_of(opener: Opener, data: bytes) -> str:
    with pytest.raises(CiphertextRefused) as refused:
        opener.open(data)
    return refused.value.reason


@given(st.randoms(use_true_random=False))
def test_any_order_with_losses_and_duplicates(chance: random.Random) -> None:
    """The model says what a receiver with this window must accept: what is new and near the highest so far."""
    opener, accepted, highest, at = Opener(KEY), set[int](), 0, 0
    for _ in range(200):
        at = max(0, min(399, at + chance.choice((1, 1, 1, 2, -1, -5, 20, 33, -20))))
        near = abs(at - highest) <= WINDOW
        # The key before the present one is known only if a message was opened with it, or the next key was derived
        # from it; the window never reaches further back.
        known = at // REKEY_INTERVAL >= highest // REKEY_INTERVAL - 1
        if near and known and at not in accepted:
            assert opener.open(SEALED[at]) == b"%d" % at
            accepted.add(at)
            highest = max(highest, at)
        else:
            reason = reason_of(opener, SEALED[at])
            assert reason == ("replayed" if near and at in accepted else "outside_window")
        opener.check()


def test_thirty_two_lost_messages_are_survived_and_thirty_three_are_not() -> None:
    """After nonce n, the next one may be n + 32; nonce n + 33 and all later ones are refused for ever."""
    opener = Opener(KEY)
    opener.open(SEALED[0])
    assert opener.open(SEALED[32]) == b"32"
    for number in range(65, 400):
        assert reason_of(opener, SEALED[number]) == "outside_window"


def test_every_single_bit_of_a_message_counts() -> None:
    opener = Opener(KEY)
    for data in (SEALED[0], SEALED[31], SEALED[1]):
        for place in range(8 * len(data)):
            changed = bytearray(data)
            changed[place >> 3] ^= 1 << (place & 7)
            assert reason_of(opener, bytes(changed)) in ("unauthentic", "outside_window", "replayed")
        # The forged messages have changed nothing.
        opener.open(data)


@pytest.mark.parametrize("size", range(OVERHEAD_BYTES))
def test_a_short_message_is_refused(size: int) -> None:
    assert reason_of(Opener(KEY), bytes(size)) == "short"


def test_an_empty_plaintext() -> None:
    assert Opener(KEY).open(Sealer(KEY).seal(b"")) == b""


def test_the_last_nonces_are_never_used() -> None:
    """The nonce 2^64 - 1 derives keys, so a sealer ends before the interval that contains it."""
    sealer = Sealer(KEY)
    sealer.nonce = NONCE_END - REKEY_INTERVAL + 1
    assert sealer.nonce % REKEY_INTERVAL == 0
    for _ in range(3):
        with pytest.raises(NoncesUsedUp, match="make a new one"):
            sealer.seal(b"x")


def test_a_nonce_is_used_up_before_it_encrypts() -> None:
    """An exception inside `seal`, such as that of a signal handler, may waste a nonce and never repeats it."""
    sealer = Sealer(KEY)

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    sealer._encrypt = interrupted  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        sealer.seal(b"x")
    assert sealer.nonce == 1
