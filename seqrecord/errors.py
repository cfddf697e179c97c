"""Exception classes of seqrecord.

::

    SeqRecordError
    ├── FormatError               stored bytes violate docs/format.md
    │   ├── ChecksumError         a page, footer, index or manifest does not match its CRC32C
    │   └── VersionError          the format version is not supported
    ├── SchemaError               invalid name, dtype, shape or codec of a feature
    │   └── FrameError            a frame does not match the schema
    ├── CodecError                a blob cannot be decoded or encoded
    ├── StorageError              a file or object cannot be read, written or listed
    │   ├── NotFoundError         the file, object or dataset does not exist
    │   ├── LocationError         invalid path or URL
    │   ├── DestinationError      the destination does not allow this write
    │   │   ├── ConflictError     another writer committed first
    │   │   └── QueueFullError    the recorder's queue is full
    │   ├── CommitUnknownError    the outcome of a commit is unknown
    │   ├── AccessError           permission denied: wrong, missing or expired credential
    │   └── TransientError        a retry may succeed: timeout, reset, busy server
    │       └── DeadlineError     retries failed until the deadline
    ├── SourceError               an original file or episode is missing, broken or inconsistent
    ├── ClipError                 invalid loader argument, or a clip request without a result
    │   └── MemoryLimitError      the memory limit is too small for the request
    ├── JoinError                 datasets do not fit together
    ├── EpisodeKeyError           no episode has this key
    ├── StatisticsKeyError        no statistics of this feature
    ├── StateError                a saved state does not match dataset or settings
    ├── ResourceError             no more threads, processes, descriptors or memory
    └── MissingPackageError       an optional package is not installed

Some classes also derive from a builtin: `SchemaError`, `FrameError`, `ClipError`, `JoinError`,
`LocationError` and `StateError` from `ValueError`, `NotFoundError` from `FileNotFoundError`,
`EpisodeKeyError` and `StatisticsKeyError` from `KeyError`, `MissingPackageError` from
`ImportError`, and `ResourceError` from `RuntimeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from seqrecord.store.text import repr_of, shown_place

__all__ = [
    "AccessError",
    "ChecksumError",
    "ClipError",
    "CodecError",
    "CommitUnknownError",
    "ConflictError",
    "DeadlineError",
    "DestinationError",
    "EpisodeKeyError",
    "FormatError",
    "FrameError",
    "JoinError",
    "LocationError",
    "MemoryLimitError",
    "MissingPackageError",
    "NotFoundError",
    "QueueFullError",
    "ResourceError",
    "SchemaError",
    "SeqRecordError",
    "SourceError",
    "StateError",
    "StatisticsKeyError",
    "StorageError",
    "TransientError",
    "VersionError",
    "located",
]


class SeqRecordError(Exception):
    """Base class of the errors that this package raises on purpose.

    `str(error)` is one line: the message, then the context: `file`, byte `offset`, `episode`,
    `feature`, `frame`, `expected`, `got`. Each of these is an attribute, `None` if unknown.

    Example:
        try:
            seqrecord.open("records/").episodes["no such episode"]
        except seqrecord.SeqRecordError as error:
            print(error.message, error.file)
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        offset: int | None = None,
        episode: str | None = None,
        feature: str | None = None,
        frame: int | None = None,
        expected: object = None,
        got: object = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.offset = offset
        self.episode = episode
        self.feature = feature
        self.frame = frame
        self.expected = expected
        self.got = got

    _CONTEXT = ("file", "offset", "episode", "feature", "frame", "expected", "got")

    def context(self) -> dict[str, Any]:
        """Context of the error by attribute name, without unknown values."""
        return {name: value for name in self._CONTEXT if (value := getattr(self, name)) is not None}

    def located(self, **facts: Any) -> SeqRecordError:
        """Set attributes that are still `None`, and return this error."""
        for name, value in facts.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        known = self.context()
        if isinstance(self.file, str):
            known["file"] = shown_place(self.file)
        facts = "".join(f"; {name}: {_text(value)}" for name, value in known.items())
        return f"{self.message}{facts}"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # For pickling between processes: the default protocol drops keyword arguments.
        return partial(type(self), self.message, **self.context()), ()


def _text(value: object) -> str:
    try:
        return f"{value}"
    except Exception:  # for example an integer of 5,000 digits
        return repr_of(value)


class located:  # noqa: N801 - used as a function; faster than `contextmanager` on hot paths
    """Context manager: adds context to errors of these classes raised in the block.

    Attributes that an error already has are kept. Other errors carry the context for `facts_of`.
    """

    def __init__(
        self, kind: type[SeqRecordError] | tuple[type[SeqRecordError], ...], **facts: Any
    ) -> None:
        self._kind, self._facts = kind, facts

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._kind):
            error.located(**self._facts)
        elif isinstance(error, Exception) and not isinstance(error, SeqRecordError):
            error.__dict__[_FACTS] = {**self._facts, **facts_of(error)}


_FACTS = "_seqrecord_facts"


def facts_of(error: BaseException) -> dict[str, Any]:
    """Context that `located` blocks added to an error that is not a `SeqRecordError`."""
    facts: dict[str, Any] = error.__dict__.get(_FACTS, {})
    return facts


class FormatError(SeqRecordError):
    """Stored bytes violate docs/format.md."""


class ChecksumError(FormatError):
    """Stored bytes do not match their CRC32C."""

    @classmethod
    def of(cls, message: str, stored: int, actual: int, **place: Any) -> ChecksumError:
        """The error for two different CRC32C."""
        return cls(message, expected=f"CRC32C {stored:08x}", got=f"{actual:08x}", **place)


class VersionError(FormatError):
    """The format version is not supported."""


class SchemaError(SeqRecordError, ValueError):
    """Invalid name, dtype, shape or codec of a feature."""


class FrameError(SchemaError):
    """A frame does not match the schema of its dataset."""


class CodecError(SeqRecordError):
    """A blob cannot be decoded to the feature's dtype and shape, or a frame cannot be encoded."""


class StorageError(SeqRecordError):
    """A file or object cannot be read, written or listed."""


class NotFoundError(StorageError, FileNotFoundError):
    """The file, object or dataset does not exist.

    Example:
        try:
            dataset = seqrecord.open("other-records/")
        except seqrecord.NotFoundError as error:
            print("pack the recordings first:", error)
    """


class LocationError(StorageError, ValueError):
    """Invalid path or URL; the message shows a valid one."""


class DestinationError(StorageError):
    """The destination does not allow this write."""


class ConflictError(DestinationError):
    """Another writer changed the destination since this writer opened it."""


class CommitUnknownError(StorageError):
    """The outcome of a commit is unknown: the service did not answer, and the commit is not found.

    The message has the id of the commit. `seqrecord info --json` lists it if the commit succeeded.
    No data was removed. If the id is still missing after some minutes, run the command again.
    """


class QueueFullError(DestinationError):
    """The recorder's queue is full: frames arrive faster than they are written."""


class AccessError(StorageError):
    """The service denied the request; the message names the credential to check."""


class TransientError(StorageError):
    """A failure that a retry may fix: a timeout, a connection reset, a busy server."""

    retry_after: float | None = None
    """Delay in seconds that the server asked for; `None` without one."""


class DeadlineError(TransientError):
    """Retries failed until the deadline, or the server asked for a longer delay than allowed.

    The message has the number of attempts and the last error, or the requested delay in seconds.
    """


class SourceError(SeqRecordError):
    """An original file or episode is missing, broken or inconsistent."""


class ClipError(SeqRecordError, ValueError):
    """Invalid loader argument, or a clip request without a result.

    Example:
        try:
            pipe = seqrecord.SeqRecordPipe("records/", clip_len=0)
        except seqrecord.ClipError as error:
            print(error.expected, error.got)
    """


class MemoryLimitError(ClipError):
    """The memory limit is too small for the request; the message has the required minimum."""


class JoinError(SeqRecordError, ValueError):
    """Datasets cannot be joined: episodes lack a partner, or were changed since."""


class EpisodeKeyError(SeqRecordError, KeyError):
    """No episode of the dataset has this key; the message lists some keys."""


class StatisticsKeyError(SeqRecordError, KeyError):
    """No statistics of this feature; the message has the command that computes them."""


class StateError(SeqRecordError, ValueError):
    """A saved state does not match this loader's dataset or settings.

    `expected` is the value in the state, `got` the value of this loader.
    """


class ResourceError(SeqRecordError, RuntimeError):
    """The operating system refuses another thread, process, file descriptor or shared memory."""


class MissingPackageError(SeqRecordError, ImportError):
    """An optional package is not installed; the message has the `pip install` command."""
