"""Errors of users' functions, on their way through `convert`.

A conversion makes an unexpected error the fault of an original, with the request to report it. The
functions of `derive`, of samples and of transforms are the user's: loaders raise their errors as
they are, and so does `derive`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from seqrecord.errors import ClipError, SeqRecordError


class FunctionError(ClipError):
    """Carries a user's error as its cause to `raising_cause`."""


@contextmanager
def carrying_errors() -> Iterator[None]:
    """Raise a `FunctionError` from other errors of the block than `SeqRecordError`."""
    try:
        yield
    except SeqRecordError:
        raise
    except Exception as error:
        raise FunctionError("derive stopped at an error of a function") from error


@contextmanager
def raising_cause() -> Iterator[None]:
    """Raise the cause of a `FunctionError` in the block, with its message as a note."""
    cause: BaseException | None = None
    try:
        yield
    except FunctionError as error:
        if (cause := error.__cause__) is None:
            raise
        if hasattr(cause, "add_note"):  # Python 3.11
            cause.add_note(f"seqrecord: {error.message}")
    if cause is not None:  # here, so that it keeps a cause of its own
        raise cause


def picklable_error(error: BaseException) -> Any:
    """Return an error that other processes can read: of a `FunctionError`, its cause as text."""
    if isinstance(error, FunctionError) and (cause := error.__cause__) is not None:
        notes = "".join(f"; {note}" for note in getattr(cause, "__notes__", ()))
        message = f"{error.message}: {type(cause).__name__}: {cause}{notes}"
        return ClipError(message, **error.context())
    return error if isinstance(error, SeqRecordError) else RuntimeError(repr(error))
