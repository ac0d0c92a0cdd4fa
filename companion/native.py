"""What source modules that are compiled import for it, without a dependency of the pure package on the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:
    T = TypeVar("T")

    def mypyc_attr(**options: bool) -> Callable[[T], T]:
        """Returns a decorator that changes nothing. The compiler reads its options in the source.

        options: only "allow_interpreted_subclasses", with which modules that are not compiled can derive classes.
        """
        return lambda decorated: decorated


__all__ = ["mypyc_attr"]
