"""The exceptions that seqrecord raises on purpose.

::

    SeqRecordError
    ├── FormatError               bytes on disk break docs/format.md
    │   ├── ChecksumError         a page, footer, index or manifest does not match its CRC32C
    │   └── VersionError          written by a format version that this reader does not know
    ├── SchemaError               a feature's name, dtype, shape or codec is not allowed
    │   └── FrameError            a frame does not fit the schema it is written under
    ├── CodecError                a blob does not decode to what its feature declares
    ├── StorageError              a file or object could not be read, written or listed
    │   ├── NotFoundError         it is not there
    │   ├── LocationError         a path or URL that cannot be understood
    │   ├── DestinationError      a destination that may not be written to as asked
    │   │   ├── ConflictError     another writer was there first
    │   │   └── QueueFullError    frames are recorded faster than they can be written
    │   ├── CommitUnknownError    nobody knows whether a commit went through, or will
    │   ├── AccessError           the service refuses: a credential that is wrong, missing, expired
    │   └── TransientError        it may go well if tried again: a timeout, a reset, a busy server
    │       └── DeadlineError     it was tried again until the deadline
    ├── SourceError               an original file or episode is missing, broken or inconsistent
    ├── ClipError                 a clip request that the dataset cannot serve
    │   └── MemoryLimitError      a memory limit too small for the request
    ├── EpisodeKeyError           no episode has this key
    ├── StatisticsKeyError        there are no statistics of this feature
    ├── StateError                a saved state that belongs to another dataset or to other settings
    ├── ResourceError             the system gives no more threads, processes or file descriptors
    └── MissingPackageError       an optional package is not installed

The ones that a caller would otherwise expect as a builtin are that builtin too: `SchemaError`,
`FrameError`, `ClipError`, `LocationError` and `StateError` are `ValueError`s, `NotFoundError` is a
`FileNotFoundError`, `EpisodeKeyError` and `StatisticsKeyError` are `KeyError`s,
`MissingPackageError` is an `ImportError`, and `ResourceError` a `RuntimeError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seqrecord.text import repr_of, shown_place

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
    """Base of every error that this package raises on purpose.

    `str(error)` is one line: the message, then whatever is known of where it happened (`file`,
    byte `offset`, `episode`, `feature`, `frame`) and of what was `expected` and what was `got`.
    The same facts are attributes, `None` where unknown.
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

    _FACTS = ("file", "offset", "episode", "feature", "frame", "expected", "got")

    def facts(self) -> dict[str, Any]:
        """What is known of the error, by name, without the unknown."""
        return {name: value for name in self._FACTS if (value := getattr(self, name)) is not None}

    def located(self, **facts: Any) -> SeqRecordError:
        """The same error with `facts` filled in where it did not know them yet."""
        for name, value in facts.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        known = self.facts()
        if isinstance(self.file, str):
            known["file"] = shown_place(self.file)
        facts = "".join(f"; {name}: {_text(value)}" for name, value in known.items())
        return f"{self.message}{facts}"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Exceptions cross process borders; the default protocol forgets keyword arguments.
        return _rebuild, (type(self), self.message, self.facts())


def _text(value: object) -> str:
    try:
        return f"{value}"
    except Exception:  # what somebody gave may have no text, such as an integer of 5,000 digits
        return repr_of(value)


def _rebuild(cls: type[SeqRecordError], message: str, facts: dict[str, Any]) -> SeqRecordError:
    return cls(message, **facts)


class located:  # noqa: N801 - as a function, which `contextmanager` makes slower: it is everywhere
    """Errors of these kinds that the block raises get the facts that they do not know yet."""

    def __init__(
        self, kind: type[SeqRecordError] | tuple[type[SeqRecordError], ...], **facts: Any
    ) -> None:
        self._kind, self._facts = kind, facts

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._kind):
            error.located(**self._facts)


class FormatError(SeqRecordError):
    """Bytes on disk break the rules of docs/format.md."""


class ChecksumError(FormatError):
    """Stored bytes do not match their CRC32C."""


class VersionError(FormatError):
    """Written by a format version that this reader does not know."""


class SchemaError(SeqRecordError, ValueError):
    """A feature's name, dtype, shape or codec is not allowed."""


class FrameError(SchemaError):
    """A frame does not fit the schema that it is written under."""


class CodecError(SeqRecordError):
    """A blob does not decode to what its feature declares, or cannot be encoded."""


class StorageError(SeqRecordError):
    """A file or object could not be read, written or listed."""


class NotFoundError(StorageError, FileNotFoundError):
    """A file, object or dataset is not there."""


class LocationError(StorageError, ValueError):
    """A path or URL that cannot be understood; the message shows what to write."""


class DestinationError(StorageError):
    """A destination that may not be written to as asked."""


class ConflictError(DestinationError):
    """Another writer was there first: what is there is no longer what this one began with."""


class CommitUnknownError(StorageError):
    """Nobody knows whether a commit went through, or will: no answer came, and no trace is there.

    The message names the id of the commit, which `seqrecord info --json` lists if it went through.
    Nothing was removed. If it is not there after some minutes, run the same command again.
    """


class QueueFullError(DestinationError):
    """Frames are recorded faster than they can be written, and there is no room for one more."""


class AccessError(StorageError):
    """The service refuses the request; the message says which credential to check."""


class TransientError(StorageError):
    """A failure that may be gone at the next attempt: a timeout, a reset, a server that is busy."""

    retry_after: float | None = None
    """Seconds that the server asked to wait, if it did."""


class DeadlineError(TransientError):
    """Attempts failed until the deadline, or the server asks to wait longer than allowed.

    The message has the number of attempts and the last one's cause, or the requested seconds.
    """


class SourceError(SeqRecordError):
    """An original file or episode is missing, broken or inconsistent."""


class ClipError(SeqRecordError, ValueError):
    """A clip request that the dataset cannot serve."""


class MemoryLimitError(ClipError):
    """A memory limit too small for the request; the message says the least that would do."""


class EpisodeKeyError(SeqRecordError, KeyError):
    """No episode of the dataset has this key; the message shows some keys."""


class StatisticsKeyError(SeqRecordError, KeyError):
    """There are no statistics of this feature; the message says how to compute them."""


class StateError(SeqRecordError, ValueError):
    """A saved state that belongs to another dataset or to other settings.

    Then `expected` is what the state says, and `got` what this loader has.
    """


class ResourceError(SeqRecordError, RuntimeError):
    """The system gives no more threads, processes or file descriptors than there are."""


class MissingPackageError(SeqRecordError, ImportError):
    """An optional package is not installed; the message says how to install it."""
