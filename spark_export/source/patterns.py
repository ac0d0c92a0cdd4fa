"""Compiles the regular expressions that choose streams by name."""

from __future__ import annotations

import re
import warnings


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a regular expression without Python's warnings, which an export would print. Raises re.error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)
