"""Compiles the regular expressions that choose streams by name."""

from __future__ import annotations

import re
import warnings


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern. Raises re.error for a text that is no regular expression.

    Python's warning that it may read a pattern such as "[[a]" in another way one day is suppressed: it would appear
    among the lines of an export, or stop a program whose warnings are errors.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)
