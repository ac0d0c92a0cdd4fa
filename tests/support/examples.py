"""How many examples Hypothesis tries in a test whose examples are dear."""

from __future__ import annotations

import os

SOAK_FACTOR = 20


def examples(count: int) -> int:
    """Returns the number of examples for `settings(max_examples=...)`: so many in the default suite, and SOAK_FACTOR
    times as many with HYPOTHESIS_PROFILE=soak."""
    return count * SOAK_FACTOR if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else count
