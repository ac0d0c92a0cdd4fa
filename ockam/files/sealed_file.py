"""Seals of small files with rules: a line with a checksum of all other bytes of the file. It shows damage, not attacks.

A file without the line is read as it is: an older version wrote it, or a user who changed it by hand has removed the
line. The next write by the program seals it."""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

_LINE: Final = re.compile(rb'^(?:# seal: ([0-9a-f]{8})| "seal": "([0-9a-f]{8})",)\n', re.MULTILINE)


class SealBroken(ValueError):
    """The error of a sealed file whose content is not what was written. The text says what to do."""


def with_seal(content: bytes) -> bytes:
    """Returns the content with its seal: a field of a JSON object that is indented by one, or else a comment in line
    1."""
    if content.startswith(b"{\n"):
        return b'{\n "seal": "%08x",\n%s' % (crc32(content), content[2:])
    return b"# seal: %08x\n%s" % (crc32(content), content)


def without_seal(content: bytes) -> bytes:
    """Returns the content of a file without its seal, if it has one. Raises SealBroken."""
    found = _LINE.search(content)
    if found is None:
        return content
    rest = content[: found.start()] + content[found.end() :]
    if crc32(rest) != int(found[1] or found[2], 16):
        raise SealBroken(
            "it is not what was written (its seal differs); put it back from a copy, or, if you have changed it by "
            "hand, remove the line with its seal"
        )
    return rest
