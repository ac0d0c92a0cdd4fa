"""Goal: each message is opened at most once, in any order within the window, and no nonce is used twice.

Method: a model that is a set of numbers, random orders, losses and changed bits; runs compared with single messages,
and the decrypted bytes with those of a plain AES-GCM; and the end of the nonces.
"""

from __future__ import annotations

import random

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from ockam.identity.channel.errors import CiphertextRefused, NoncesUsedUp
from ockam.identity.channel.transport import NONCE_END, OVERHEAD_BYTES, REKEY_INTERVAL, WINDOW, Opener, Sealer

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


@given(st.lists(st.integers(0, 90), max_size=8))
def test_runs_are_encrypted_as_single_messages(sizes: list[int]) -> None:
    """Whatever the sizes of the runs are, and wherever the key is replaced, the bytes are those of single messages."""
    sealer, at = Sealer(KEY), 0
    for size in sizes:
        plaintexts = [b"%d" % number for number in range(at, at + size)][: len(SEALED) - at]
        assert sealer.seal_many(plaintexts) == SEALED[at : at + size]
        at += len(plaintexts)
        assert sealer.nonce == at


def test_single_messages_are_those_of_a_plain_cipher() -> None:
    """The keys and nonces are computed here once more, by the words of the module's docstring."""
    key = KEY
    for number, data in enumerate(SEALED):
        if number and not number % 32:
            key = AESGCM(key).encrypt(bytes(4) + b"\xff" * 8, bytes(32), b"")[:32]
        assert data[:8] == number.to_bytes(8, "big")
        assert AESGCM(key).decrypt(bytes(4) + data[:8], data[8:], b"") == b"%d" % number


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The message as it is, or with a changed tag, or cut."""
    return chance.choice((data, data, data, data, data[:-1] + bytes((data[-1] ^ 1,)), data[: chance.randrange(30)]))


@given(st.randoms(use_true_random=False))
def test_runs_are_decrypted_as_single_messages(chance: random.Random) -> None:
    """Two openers get the same messages, with losses, duplicates and damage; one gets runs, and the other singles."""
    by_runs, by_singles, at = Opener(KEY), Opener(KEY), 0
    for _ in range(6):
        run = []
        for _ in range(chance.randrange(80)):
            run.append(damaged(chance, SEALED[at]) if chance.random() < 0.1 else SEALED[at])
            at = max(0, min(399, at + (1 if chance.random() < 0.9 else chance.choice((0, 2, -3, 20, -20)))))
        plaintexts, reasons = [], []
        for data in run:
            try:
                plaintexts.append(by_singles.open(data))
            except CiphertextRefused as error:
                reasons.append(error.reason)
        opened, refused = by_runs.open_many(run)
        assert (opened, [error.reason for error in refused]) == (plaintexts, reasons)
        by_runs.check()
        assert (by_runs.highest, by_runs._seen) == (by_singles.highest, by_singles._seen)


def test_a_changed_message_in_a_run_costs_only_itself() -> None:
    """Also directly before and after the key is replaced. A correct copy of the message is accepted later."""
    for wrong in (0, 15, 31, 32, 33, 99):
        opener = Opener(KEY)
        run = [data[:-1] + b"?" if number == wrong else data for number, data in enumerate(SEALED[:100])]
        opened, refused = opener.open_many(run)
        assert opened == [b"%d" % number for number in range(100) if number != wrong]
        assert [error.reason for error in refused] == ["unauthentic"]
        known = wrong // REKEY_INTERVAL >= 99 // REKEY_INTERVAL - 1 and wrong >= 99 - WINDOW
        assert opener.open_many([SEALED[wrong]])[0] == ([b"%d" % wrong] if known else [])


def test_the_last_nonces_are_never_used() -> None:
    """The nonce 2^64 - 1 derives keys, so a sealer ends before the interval that contains it."""
    sealer = Sealer(KEY)
    last = NONCE_END - REKEY_INTERVAL
    sealer.nonce = last
    # A run for which the nonces are not enough uses up none.
    with pytest.raises(NoncesUsedUp, match="make a new one"):
        sealer.seal_many([b"x", b"x"])
    assert sealer.nonce == last
    assert int.from_bytes(sealer.seal(b"x")[:8], "big") == last
    assert sealer.nonce % REKEY_INTERVAL == 0
    for _ in range(3):
        with pytest.raises(NoncesUsedUp, match="make a new one"):
            sealer.seal(b"x")
        assert sealer.seal_many([]) == []


class Interrupted:
    """A cipher that is interrupted, as by a signal handler, in the `fails_at`-th call. It keeps the nonces."""

    def __init__(self, fails_at: int) -> None:
        self.nonces: list[bytes] = []
        self._fails_at = fails_at
        self._cipher = AESGCM(KEY)

    def encrypt(self, nonce: bytes, data: bytes, associated: bytes | None) -> bytes:
        self._note(nonce)
        return self._cipher.encrypt(nonce, data, associated)

    def decrypt(self, nonce: bytes, data: bytes, associated: bytes | None) -> bytes:
        self._note(nonce)
        return self._cipher.decrypt(nonce, data, associated)

    def _note(self, nonce: bytes) -> None:
        self.nonces.append(nonce)
        if len(self.nonces) == self._fails_at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("fails_at", [1, 4, 10])
def test_a_nonce_is_used_up_before_it_encrypts(fails_at: int) -> None:
    """An exception inside `seal_many`, such as that of a signal handler, may waste nonces and never repeats one."""
    sealer, cipher = Sealer(KEY), Interrupted(fails_at)
    sealer._cipher = cipher  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        sealer.seal_many([b"x"] * 10)
    assert sealer.nonce == 10
    sealer.seal_many([b"y"] * 10)
    assert len(set(cipher.nonces)) == len(cipher.nonces) == fails_at + 10


def test_an_interrupted_run_is_decrypted_at_most_once() -> None:
    """The messages before the interruption count as accepted, and those after it can still be opened."""
    opener = Opener(KEY)
    opener._cipher = Interrupted(5)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        opener.open_many(SEALED[:10])
    opener.check()
    opened, refused = opener.open_many(SEALED[:10])
    assert opened == [b"%d" % number for number in range(4, 10)]
    assert [error.reason for error in refused] == ["replayed"] * 4
