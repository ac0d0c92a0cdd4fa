"""Text of peers as a terminal may be sent it. Who prints is the business of the command line and of the logs."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text as one line that a terminal only shows.

    Names and reasons come from peers: a line end in one would forge a row of a table, an escape code would retitle the
    window or hide what is above. Every character that is not printable, direction marks too, is written as Python does.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_bytes(data: bytes) -> bytes:
    """The same of bytes, of which those that are no UTF-8 are written as Python does."""
    return printable(data.decode(errors="backslashreplace")).encode()
