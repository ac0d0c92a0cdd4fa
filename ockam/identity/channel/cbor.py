"""CborReader and the writing functions: the few CBOR shapes of identities and channel messages (RFC 8949).

Only unsigned numbers, byte strings, arrays, booleans and null are read and written, with definite lengths and the
shortest form of every number. Everything else is refused: a proof with two encodings could be changed unnoticed."""

from __future__ import annotations

from ockam.transport.wire_head import ARRAY, BYTE_STRING, NULL, SIZE_BYTES, UNSIGNED, write_head

MAP = 5
FALSE, TRUE = 0xF4, 0xF5
_SMALLEST = {1: 24, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}


class CborError(ValueError):
    """Error: the bytes are not the expected CBOR. is_map: whether a map came where an array was expected."""

    def __init__(self, text: str, *, is_map: bool = False) -> None:
        super().__init__(text)
        self.is_map = is_map


class CborReader:
    """Reads items of `data` one after the other, from `at` on. A method raises CborError for an item of another kind.
    Of an array, only its head is read."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._end = len(data)
        self.at = at

    def unsigned(self) -> int:
        return self._head(UNSIGNED)

    def array(self, items: int) -> None:
        found = self._head(ARRAY)
        if found != items:
            raise CborError(f"an array of {found} items at byte {self.at}; {items} are expected")

    def array_of(self, items_min: int, items_max: int) -> int:
        found = self._head(ARRAY)
        if not items_min <= found <= items_max:
            raise CborError(f"an array of {found} items at byte {self.at}; {items_min} to {items_max} are accepted")
        return found

    def byte_string(self, size_bytes: int | None = None) -> bytes:
        size = self._head(BYTE_STRING)
        if size_bytes is not None and size != size_bytes:
            raise CborError(f"{size} bytes at byte {self.at}; {size_bytes} are expected")
        if size > self._end - self.at:
            raise CborError(f"a byte string at byte {self.at} is longer than the message")
        self.at += size
        return self._data[self.at - size : self.at]

    def boolean(self) -> bool:
        if self.at >= self._end or self._data[self.at] not in (FALSE, TRUE):
            raise CborError(f"no boolean at byte {self.at}")
        self.at += 1
        return self._data[self.at - 1] == TRUE

    def null(self) -> bool:
        """Returns whether the next item is a null. If so, reads it."""
        is_null = self.at < self._end and self._data[self.at] == NULL
        self.at += is_null
        return is_null

    def finish(self) -> None:
        if self.at != self._end:
            raise CborError(f"{self._end - self.at} bytes behind the message")

    def since(self, start: int) -> bytes:
        return self._data[start : self.at]

    def _head(self, major: int) -> int:
        if self.at >= self._end:
            raise CborError("the message ends too early")
        first = self._data[self.at]
        if first >> 5 != major:
            text = f"CBOR type {first >> 5} where {major} is expected, at byte {self.at}"
            raise CborError(text, is_map=first >> 5 == MAP)
        small = first & 31
        self.at += 1
        if small < 24:
            return small
        width = SIZE_BYTES.get(small)
        if width is None or width > self._end - self.at:
            raise CborError(f"a length that is indefinite or cut, at byte {self.at}")
        value = int.from_bytes(self._data[self.at : self.at + width], "big")
        # A longer form of the same number would be a second encoding.
        if value < _SMALLEST[width]:
            raise CborError(f"a number at byte {self.at} is not in its shortest form")
        self.at += width
        return value


def write_unsigned(value: int) -> bytes:
    return write_head(UNSIGNED, value)


def write_bytes(value: bytes) -> bytes:
    return write_head(BYTE_STRING, len(value)) + value


def write_array(*items: bytes) -> bytes:
    return write_head(ARRAY, len(items)) + b"".join(items)


def write_boolean(value: bool) -> bytes:
    return bytes((TRUE if value else FALSE,))


def write_null() -> bytes:
    return bytes((NULL,))
