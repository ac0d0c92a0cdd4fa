"""Compiles the regular expressions that choose streams by name."""

from __future__ import annotations

import re
import warnings


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a regular expression. Raises re.error for an invalid regular expression.

    For a pattern such as "[[a]" Python warns that a later version could read the pattern in another way. This
    function suppresses the warning: it would appear in the output of an export, or stop a program that treats
    warnings as errors.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)
