"""How often pyiceberg sends a request to S3 again, as the store option `tries` says.

pyiceberg takes the name of a class, which it calls without arguments. So this module has a name for each number of
tries: the name with a 6 at its end is called like a class, and makes the strategy with six tries. Without such a name,
pyiceberg would try three times, whatever the store option says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyarrow import fs

PREFIX = "Tries"


def name_strategy(tries: str) -> str:
    return f"{__name__}.{PREFIX}{tries}"


def __getattr__(name: str) -> Callable[[], fs.S3RetryStrategy]:
    tries = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) or not tries.isdecimal():
        raise AttributeError(name)
    return partial(fs.AwsStandardS3RetryStrategy, max_attempts=int(tries))
