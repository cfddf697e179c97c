"""The boundary between readers of originals and their callers.

Readers check their files and raise `SourceError` with the facts. An error that none of these checks
expected becomes an `UnexpectedError` here, so that one strange file costs one episode and never a
conversion of thousands. It is a missing check: tests empty `RAW_ERRORS`, and then it is raised as
it is.
"""

from __future__ import annotations

import functools
import inspect
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

from seqrecord.errors import CodecError, SchemaError, SeqRecordError, SourceError, facts_of
from seqrecord.store.originals.wrapping import OPTIONAL
from seqrecord.store.text import repr_of

_Item = TypeVar("_Item")

RAW_ERRORS: tuple[type[Exception], ...] = (
    *(ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError),
    *(EOFError, zlib.error, struct.error),
)
"""Errors that data can cause. Not `AssertionError`, `MemoryError` and `OSError`, which are faults
of the program or the machine."""

MOST_UNEXPECTED = 10
"""Maximum episodes that `skip_bad_episodes` leaves out for one type of unexpected error."""

_PACKAGE = __name__.partition(".")[0]
_ENTRIES = ("episodes", "exists", "frames", "schema", *OPTIONAL)


class UnexpectedError(SourceError):
    """An original cannot be read, for a reason that its reader does not check."""

    @property
    def raw_type(self) -> str:
        """Class name of the original error; the message has it, which survives pickling."""
        return self.message.partition("(")[2].partition(" at ")[0]


@contextmanager
def boundary(**facts: Any) -> Iterator[None]:
    """Raise unexpected errors of the block as `UnexpectedError`, with `facts` and located ones."""
    try:
        yield
    except SeqRecordError:  # some derive from `ValueError` or `KeyError`
        raise
    except RAW_ERRORS as error:
        kind, place = type(error), _place(error.__traceback__)
        name = (
            kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        )
        raise UnexpectedError(
            f"cannot be read ({name} at {place}); if the file is right, please report it",
            **{**facts, **facts_of(error), "got": f"{name}: {repr_of(str(error), 200)}"},
        ) from error


@contextmanager
def reader_boundary(**facts: Any) -> Iterator[None]:
    """Like `boundary`, for a block of a reader: values that no schema or codec allows count too."""
    try:
        with boundary(**facts):
            yield
    except (SchemaError, CodecError) as error:
        raise SourceError(error.message, **{**facts, **error.context()}) from error


@contextmanager
def skipping_unreadable() -> Iterator[None]:
    """Suppress errors of an original in the block, where its reading raises them again."""
    with suppress(SourceError), reader_boundary():
        yield


def guarded(items: Iterable[_Item], **facts: Any) -> Iterator[_Item]:
    """Yield the items; unexpected errors of their iterator become `UnexpectedError`."""
    with boundary(**facts):
        yield from items


def _read(items: Iterable[_Item], **facts: Any) -> Iterator[_Item]:
    with reader_boundary(**facts):
        yield from items


def guard_methods(source: type) -> None:
    """Make the methods of `Source`, also optional ones, that a class defines boundaries."""
    for name in _ENTRIES:
        if inspect.isfunction(method := vars(source).get(name)):
            setattr(source, name, _guarded_method(method))


def check_unexpected(errors: Iterable[SourceError]) -> None:
    """Raise `SourceError` if more than `MOST_UNEXPECTED` episodes have one type of raw error.

    So many are a fault of the reader rather than of the files, and skipping would lose good data.
    """
    unexpected = [error for error in errors if isinstance(error, UnexpectedError)]
    for raw_type, count in Counter(error.raw_type for error in unexpected).items():
        if count > MOST_UNEXPECTED:
            error = next(error for error in unexpected if error.raw_type == raw_type)
            raise SourceError(
                f"{count} episodes fail with an unexpected {raw_type}, which is more than "
                "skip_bad_episodes leaves out; please report it, or move these episodes out of "
                f"the original. The first error: {error.message}",
                **{**error.context(), "expected": f"at most {MOST_UNEXPECTED} such episodes"},
            ) from error


def _guarded_method(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def items(self: Any, *args: Any, **options: Any) -> Any:
            return _read(method(self, *args, **options), **_facts(self, args))

        return items

    @functools.wraps(method)
    def result(self: Any, *args: Any, **options: Any) -> Any:
        facts = _facts(self, args)
        with reader_boundary(**facts):
            value = method(self, *args, **options)
        if method.__name__ == "videos":
            return {name: _read(gops, **facts, feature=name) for name, gops in value.items()}
        return _read(value, **facts) if isinstance(value, Iterator) else value

    return result


def _facts(source: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    facts = {"file": str(source.root)}
    key = getattr(args[0], "key", None) if args else None
    return {**facts, "episode": key} if isinstance(key, str) else facts


def _place(trace: TracebackType | None) -> str:
    """Return module and line of the innermost frame of this package, or of all frames."""
    places = []
    while trace is not None:
        places.append((str(trace.tb_frame.f_globals.get("__name__")), trace.tb_lineno))
        trace = trace.tb_next
    places = [place for place in places if place[0] != __name__] or places
    package = [place for place in places if place[0].partition(".")[0] == _PACKAGE]
    module, line = (package or places)[-1]
    return f"{module}:{line}"
