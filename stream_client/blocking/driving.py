"""Makes the blocking half of a client from its async half: each blocking object, a twin, has an async object whose
coroutines it runs to their end.

The coroutines of the async client wait only through the client's shell. A `BlockingShell` waits inside its coroutines,
which never suspend, so a coroutine ends with its first step. A type checker and `help()` see the parameters, the
defaults and the result of the async method.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, get_args, get_origin, overload

from stream_client.connecting import SHELL
from stream_client.shell.blocking_shell import BlockingShell
from stream_client.shell.dial import run_now

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
T = TypeVar("T")


class Method(Generic[P, R]):
    """The type of the methods that this module makes: functions of a twin, with the parameters of the async method."""

    @overload
    def __get__(self, twin: None, owner: type[T]) -> Callable[Concatenate[T, P], R]: ...
    @overload
    def __get__(self, twin: object, owner: type | None = None) -> Callable[P, R]: ...
    def __get__(self, twin: object, owner: type | None = None) -> Any:
        raise NotImplementedError  # The methods are functions, which Python binds to the twin.

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Calls the method. This signature shows Pyright that a twin fits a Protocol, for example `Positions`."""
        raise NotImplementedError


class Twin(Generic[A]):
    """The base class of blocking objects. An attribute that a subclass declares reads and sets the attribute of this
    name of the async object. Two blocking objects of one async object are equal."""

    _twin: A

    def __init_subclass__(cls, **others: Any) -> None:
        super().__init_subclass__(**others)
        base = cls.__dict__.get("__orig_bases__", (None,))[0]
        # A subclass that a program makes has attributes of its own.
        if getattr(get_origin(base), "__module__", "") != __name__:
            return
        of = get_origin(argument := get_args(base)[0]) or argument
        cls.__doc__ = cls.__doc__ or of.__doc__
        for name in cls.__annotations__:
            known = getattr(of, name, None)
            doc = known.__doc__ if isinstance(known, property) else None
            get, put = attrgetter(f"_twin.{name}"), lambda self, value, name=name: setattr(self._twin, name, value)
            setattr(cls, name, property(get, put, doc=doc or ""))

    @classmethod
    def _of(cls, twin: A) -> Self:
        made = cls.__new__(cls)
        made._twin = twin
        return made

    @classmethod
    def _one_of(cls, twin: A) -> Self:
        """Returns the blocking object of an async object, the same one each time."""
        if "_blocking" not in (attributes := vars(twin)):
            attributes["_blocking"] = cls._of(twin)
        return cast("Self", attributes["_blocking"])

    def __eq__(self, other: object) -> bool:
        return self._twin is other._twin if isinstance(other, Twin) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._twin)

    def __repr__(self) -> str:
        return repr(self._twin)


class TwinContext(Twin[A]):
    """The blocking object of an async context manager."""

    def __enter__(self) -> Self:
        run_now(cast("Any", self._twin).__aenter__())
        return self

    def __exit__(self, *raised: object) -> None:
        run_now(cast("Any", self._twin).__aexit__(*raised))


class TwinIterator(Twin[A], Generic[A, R]):
    """The blocking object of an async iterator."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> R:
        try:
            item: R = run_now(cast("Any", self._twin).__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
        return item


def like(method: Callable[..., Any]) -> Callable[[F], F]:
    """Returns a decorator that gives a function the signature and the docstring of `method`, an async function."""
    return cast("Callable[[F], F]", wraps(method))


def same(method: Callable[Concatenate[Any, P], R]) -> Method[P, R]:
    """Returns a method that calls `method` of the async object. `method` is not a coroutine, and does not wait."""

    @wraps(method)
    def call(self: Twin[Any], *arguments: P.args, **named: P.kwargs) -> R:
        return method(self._twin, *arguments, **named)

    return cast("Method[P, R]", call)


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Method[P, R]:
    """Returns a method that calls the coroutine `method` of the async object, and waits for its result."""

    @wraps(method)
    def call(self: Twin[Any], *arguments: P.args, **named: P.kwargs) -> R:
        return run_now(method(self._twin, *arguments, **named))

    return cast("Method[P, R]", call)


def shown(show: Callable[[A], B], method: Method[P, A]) -> Method[P, B]:
    """Returns a method that calls `method`, and returns the twin that `show` makes of the resulting async object."""
    function = cast("Callable[..., A]", method)

    @wraps(function)
    def call(self: Twin[Any], *arguments: P.args, **named: P.kwargs) -> B:
        return show(function(self, *arguments, **named))

    return cast("Method[P, B]", call)


def opening(
    open_async: Callable[P, AbstractAsyncContextManager[A]], show: Callable[[A], B]
) -> Callable[P, AbstractContextManager[B]]:
    """Returns the blocking form of a function that opens an async context manager. show: makes the twin of
    the object that the context manager returns."""

    @contextmanager
    @wraps(open_async)
    def opened(*arguments: P.args, **named: P.kwargs) -> Iterator[B]:
        manager = open_async(*arguments, **named)
        with _without_loop():
            entered = run_now(cast("Any", manager).__aenter__())
        try:
            yield show(entered)
        except BaseException as error:
            if not run_now(cast("Any", manager).__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            run_now(cast("Any", manager).__aexit__(None, None, None))

    return _without_async(opened, open_async)


def iterating(generate: Callable[P, AsyncIterator[R]]) -> Callable[P, Iterator[R]]:
    """Returns the blocking form of a function that is an async generator."""

    @wraps(generate)
    def generated(*arguments: P.args, **named: P.kwargs) -> Iterator[R]:
        items = cast("Any", generate(*arguments, **named))
        try:
            while True:
                with _without_loop():
                    following = items.__anext__()
                yield run_now(following)
        except StopAsyncIteration:
            return
        finally:
            run_now(items.aclose())

    return _without_async(generated, generate)


def _without_async(made: F, function: Callable[..., Any]) -> F:
    """Makes `help()` show for the blocking form of this function that it returns an Iterator, not an AsyncIterator."""
    result = function.__annotations__["return"].removeprefix("Async")
    made.__signature__ = inspect.signature(function).replace(return_annotation=result)  # type: ignore[attr-defined]
    return made


@contextmanager
def _without_loop() -> Iterator[None]:
    """Makes `connect` choose the BlockingShell, and keeps an event loop of this thread, such as that of a notebook,
    from ending the generators that begin in this block."""
    hooks = sys.get_asyncgen_hooks()
    before = SHELL.set(BlockingShell)
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)
        SHELL.reset(before)
