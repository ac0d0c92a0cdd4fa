"""Makes text from peers safe for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Returns the text as one line that a terminal shows but does not interpret.
    Names and reasons come from peers. A line end in them would add a row to a table, and an escape code could rename
    the window or hide text. So every character that is not printable is replaced by its Python escape sequence."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_bytes(data: bytes) -> bytes:
    """Does for bytes what `printable` does for text. Bytes that are not UTF-8 become Python escape sequences."""
    return printable(data.decode(errors="backslashreplace")).encode()
