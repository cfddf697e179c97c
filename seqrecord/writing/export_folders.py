"""Folders that an export writes to, and the disk's errors as this package's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seqrecord.errors import DestinationError, SeqRecordError

__all__ = ["disk_errors", "make_empty"]


@contextmanager
def disk_errors(what: str, root: Path, episode: str | None = None) -> Iterator[None]:
    """The system's errors as `DestinationError`: `what` cannot be written.

    This package's own pass as they are: what the dataset lacks is no matter of the destination.
    """
    try:
        yield
    except SeqRecordError:
        raise
    except OSError as error:
        raise DestinationError(
            f"{what} cannot be written: {error.strerror or error}",
            file=str(error.filename or root),
            episode=episode,
        ) from error


def make_empty(folder: Path, what: str, episode: str | None = None) -> None:
    """Make a folder; `DestinationError` if it is there already and holds anything."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise DestinationError(
            f"{what} is not empty; choose another place, or remove what is in it",
            file=str(folder),
            episode=episode,
        )
