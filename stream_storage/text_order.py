"""The order of texts in the database, which is that of their UTF-8 bytes. This module reads no database."""

from __future__ import annotations


def prefix_end(prefix: str) -> str | None:
    """Returns the smallest text that is greater than every text with this prefix, or None if no such text exists.

    Texts are compared by code points, which is also the order of their UTF-8 bytes. Surrogates are skipped, since UTF-8
    cannot encode them.
    """
    last = "\U0010ffff"
    while prefix:
        if prefix[-1] != last:
            following = ord(prefix[-1]) + 1
            return prefix[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)
        prefix = prefix[:-1]
    return None
