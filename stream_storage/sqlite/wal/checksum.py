"""Computes the checksum of SQLite's write-ahead log, and uses the checksum to correct one wrong word.

The checksum is two sums over pairs of 32-bit words, modulo 2**32: s0 += x0 + s1, then s1 += x1 + s0. The words are
little-endian or big-endian, as the log's header says. A pair (x0, x1) turns the sums (s0, s1) into A * (s0, s1) + (x0,
x0 + x1), where A is the matrix (1 1, 1 2). So the checksum is linear: many pairs can be summed at once, and a wrong
word changes each sum by a multiple of the word's weight, a number that depends only on its location."""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

Sums: TypeAlias = tuple[int, int]

LANES_MIN: Final = 64
"""The smallest number of word pairs that `_sum_lanes` sums at once. Fewer pairs are summed one by one."""
_MASK: Final = 0xFFFFFFFF
_LANE: Final = b"\xff\xff\xff\xff\0\0\0\0"


def checksum(data: bytes, seed: Sums, big_endian: bool) -> Sums:
    """Returns the two sums of `data`, a multiple of 8 bytes. seed: the sums over earlier data."""
    pairs = len(data) // 8
    at_once = 1 << (pairs.bit_length() - 1) if pairs >= LANES_MIN else 0
    first = pairs - at_once
    words = iter(struct.unpack_from(f"{'>' if big_endian else '<'}{2 * first}I", data))
    s0, s1 = seed
    for x0, x1 in zip(words, words, strict=True):
        s0 = (s0 + x0 + s1) & _MASK
        s1 = (s1 + x1 + s0) & _MASK
    return _sum_lanes(data[8 * first :], (s0, s1), big_endian) if at_once else (s0, s1)


def _sum_lanes(data: bytes, seed: Sums, big_endian: bool) -> Sums:
    """Returns the two sums over a power of two of word pairs, four times as fast as pair by pair: two large integers
    contain s0 and s1 of each pair, in lanes of 64 bits, and each step combines the two halves of the lanes."""
    plan = _plan(len(data) // 8)
    if big_endian:
        words = array("I", data)
        words.byteswap()
        data = words.tobytes()
    pairs = int.from_bytes(data, "little")
    u = pairs & plan.lanes
    v = u + (pairs >> 32 & plan.lanes)
    s0, s1 = _step(seed)
    u, v = (u + s0) & plan.lanes, (v + s1) & plan.lanes
    for bits, low, lanes, (a, b, c, d) in plan.halvings:
        # Each product fits into its lane. It is cut to 32 bits before the addition, so that no carry reaches the next
        # lane.
        first_u, first_v = u & low, v & low
        u, v = (
            ((first_u * a & lanes) + (first_v * b & lanes) + (u >> bits)) & lanes,
            ((first_u * c & lanes) + (first_v * d & lanes) + (v >> bits)) & lanes,
        )
    return u, v


class _Plan(NamedTuple):
    """The constants of `_sum_lanes` for one number of pairs.

    lanes: a mask of the lower 32 bits of all lanes.
    halvings: for each step, about the first half of the lanes: their number of bits, a mask of all their bits, a mask
        of their lower 32 bits, and the matrix A to the power of the number of these lanes."""

    lanes: int
    halvings: tuple[tuple[int, int, int, tuple[int, int, int, int]], ...]


@lru_cache(maxsize=4)
def _plan(pairs: int) -> _Plan:
    halvings = []
    half, (a, b, c, d) = 1, (1, 1, 1, 2)
    while half < pairs:
        halvings.append((64 * half, (1 << 64 * half) - 1, int.from_bytes(_LANE * half, "little"), (a, b, c, d)))
        half *= 2
        a, b, c, d = (value & _MASK for value in (a * a + b * c, a * b + b * d, c * a + d * c, c * b + d * d))
    assert half == pairs, "a page has a power of two of bytes"
    return _Plan(int.from_bytes(_LANE * pairs, "little"), tuple(reversed(halvings)))


def correct_word(data: bytes, sums: Sums, wanted: Sums, big_endian: bool) -> list[bytes]:
    """Returns all versions of `data`, which has the checksum `sums`, with one changed 32-bit word and the checksum
    `wanted`.

    Usually there is one or none. If the upper ten bits of a word are wrong, changes of different words can give the
    same checksum. A changed word fits by accident once in a million, and a single changed byte once in 2**43."""
    need = ((wanted[0] - sums[0]) & _MASK, (wanted[1] - sums[1]) & _MASK)
    order = ">I" if big_endian else "<I"
    found = []
    for place, (a, b, inverse, by_first) in enumerate(_weights(len(data) // 4)):
        step = need[0] * inverse if by_first else need[1] * inverse
        if (step * a - need[0]) & _MASK == 0 == (step * b - need[1]) & _MASK:
            (word,) = struct.unpack_from(order, data, 4 * place)
            changed = struct.pack(order, (word + step) & _MASK)
            found.append(data[: 4 * place] + changed + data[4 * place + 4 :])
    return found


@lru_cache(maxsize=2)
def _weights(words: int) -> tuple[tuple[int, int, int, bool], ...]:
    """Returns for each 32-bit word: by how much each of the two sums grows when the word grows by one, an inverse of
    one of these weights, and whether it inverts the first. One is odd: they are neighbouring Fibonacci numbers."""
    first, second = (1, 1), (0, 1)
    backwards: list[Sums] = []
    for _ in range(words // 2):
        # The second word of a pair is added to s1 only, the first word to both sums. Each later pair transforms the
        # weights once more.
        backwards += (second, first)
        first, second = _step(first), _step(second)
    return tuple((a, b, pow(a if a & 1 else b, -1, 1 << 32), bool(a & 1)) for a, b in reversed(backwards))


def _step(sums: Sums) -> Sums:
    s0 = (sums[0] + sums[1]) & _MASK
    return s0, (sums[1] + s0) & _MASK
