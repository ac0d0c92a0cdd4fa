"""The order of texts in the database, which is that of their UTF-8 bytes and of their code points."""

from __future__ import annotations


def prefix_end(prefix: str) -> str | None:
    """Returns the smallest text above every text with this prefix, or None. UTF-8 cannot encode surrogates, so they are
    skipped."""
    last = "\U0010ffff"
    while prefix:
        if prefix[-1] != last:
            following = ord(prefix[-1]) + 1
            return prefix[:-1] + chr(0xE000 if 0xD800 <= following <= 0xDFFF else following)
        prefix = prefix[:-1]
    return None
