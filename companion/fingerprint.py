"""Computes the fingerprint of source modules: it differs if any of their sources differs. It does not import them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

PACKAGES_FOLDER = Path(__file__).resolve().parents[1]
"""The folder that has the packages of stream-node: `site-packages`, or the checkout."""


def fingerprint(modules: Iterable[str], folder: Path = PACKAGES_FOLDER) -> str:
    """Returns the SHA-256 of the names and the sources of these modules, as hexadecimal text.

    folder: the folder that has the packages of the modules.
    Raises OSError if a source cannot be read.
    """
    digest = hashlib.sha256()
    for module in modules:
        source = (folder / module.replace(".", "/")).with_suffix(".py").read_bytes()
        digest.update(b"%s %d\n" % (module.encode(), len(source)))
        digest.update(source)
    return digest.hexdigest()
