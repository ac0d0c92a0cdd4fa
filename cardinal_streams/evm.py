"""The `Application` for Ethereum-like chains: the keys of the reference plugins, and a topic for each kind of data.

`CHAIN` is the chain's id in hexadecimal:

    c/CHAIN/b/HASH/h        block header, RLP                c/CHAIN/n/NUMBER           hash of the block, 32 bytes
    c/CHAIN/b/HASH/d        total difficulty, big-endian     c/CHAIN/a/ACCOUNT/d        account, RLP
    c/CHAIN/b/HASH/w        withdrawals, RLP                 c/CHAIN/a/ACCOUNT/s/SLOT   storage slot, RLP
    c/CHAIN/b/HASH/u/I      uncle header, RLP                c/CHAIN/c/HASH             code
    c/CHAIN/b/HASH/t/I      transaction, RLP, or a type byte and RLP
    c/CHAIN/b/HASH/r/I      receipt, RLP                     c/CHAIN/s                  sub batch of the state changes
    c/CHAIN/b/HASH/l/T/I    log of transaction T, RLP

Values are not decoded. A check reads only the bytes that it needs to recognise the format."""

from __future__ import annotations

from cardinal_streams.application import REORG_THRESHOLD, Application, Prefix
from cardinal_streams.limits import HASH_BYTES

# The changes of a block to accounts are one sub batch, whose path is `c/CHAIN/` and this text.
STATE_PATH = "s"
# EIP-2718: the first byte of a typed transaction is its type, at most 0x7f; an RLP list begins at 0xc0.
TYPE_MAX = 0x7F


def evm(chain_id: int = 1, *, reorg_threshold: int = REORG_THRESHOLD) -> Application:
    """Returns the `Application` for the chain with this id; 1 is Ethereum's main network."""
    chain = f"c/{chain_id:x}"
    name = f"evm-{chain_id}"
    block = f"{chain}/b/[0-9a-f]+"
    state = f"{name}-state"
    return Application(
        name,
        f"{name}-blocks",
        (
            Prefix(pattern=f"{block}/h", topic=f"{name}-blocks", schema="RLP of a header", check=check_rlp_list),
            Prefix(pattern=f"{block}/d", topic=f"{name}-blocks", schema="big-endian number", check=_check_number),
            Prefix(pattern=f"{block}/w", topic=f"{name}-blocks", schema="RLP of withdrawals", check=check_rlp_list),
            Prefix(pattern=f"{block}/u/", topic=f"{name}-blocks", schema="RLP of a header", check=check_rlp_list),
            Prefix(pattern=f"{chain}/n/", topic=f"{name}-blocks", schema="block hash", check=_check_hash),
            Prefix(pattern=f"{block}/t/", topic=f"{name}-transactions", schema="transaction", check=_check_transaction),
            Prefix(pattern=f"{block}/r/", topic=f"{name}-receipts", schema="RLP of a receipt", check=check_rlp_list),
            Prefix(pattern=f"{block}/l/", topic=f"{name}-logs", schema="RLP of a log", check=check_rlp_list),
            Prefix(pattern=f"{chain}/a/", topic=state, schema="RLP of an account or slot"),
            Prefix(pattern=f"{chain}/c/", topic=f"{name}-code", schema="code"),
            Prefix(pattern=f"{chain}/{STATE_PATH}\\Z", topic=state, schema="sub batch"),
        ),
        reorg_threshold=reorg_threshold,
    )


def check_rlp_list(value: bytes) -> None:
    """Raises ValueError unless the value is exactly one RLP list of well-formed items."""
    if not value or value[0] < 0xC0:
        raise ValueError("it is no RLP list")
    start, size, _ = _head(value, 0)
    if start + size != len(value):
        raise ValueError(f"an RLP list of {start + size} bytes in a value of {len(value)}")
    # The ends of the lists around the item, instead of a recursion: the sender chooses how deep lists are nested.
    at, ends = start, [len(value)]
    while ends:
        while ends and at == ends[-1]:
            ends.pop()
        if not ends:
            return
        start, size, is_list = _head(value, at)
        if start + size > ends[-1]:
            raise ValueError(f"an RLP item at byte {at} ends beyond what it is in")
        if is_list:
            at = start
            ends.append(start + size)
        else:
            at = start + size


def _head(value: bytes, at: int) -> tuple[int, int, bool]:
    first = value[at]
    if first < 0x80:
        return at, 1, False
    is_list = first >= 0xC0
    short = first - (0xC0 if is_list else 0x80)
    if short <= 55:
        return at + 1, short, is_list
    digits = value[at + 1 : at + 1 + short - 55]
    if len(digits) < short - 55 or digits[0] == 0:
        raise ValueError(f"the size of the RLP item at byte {at} is cut off or not the shortest form")
    return at + 1 + len(digits), int.from_bytes(digits, "big"), is_list


def _check_transaction(value: bytes) -> None:
    check_rlp_list(value[1:] if value and value[0] <= TYPE_MAX else value)


def _check_hash(value: bytes) -> None:
    if len(value) != HASH_BYTES:
        raise ValueError(f"{len(value)} bytes instead of {HASH_BYTES}")


def _check_number(value: bytes) -> None:
    if value[:1] == b"\0" or len(value) > 32:
        raise ValueError("it has leading zeros, or more than 256 bits")
