"""Sources of data that lies on a URL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from seqrecord.codecs.video.gops import Gop
from seqrecord.errors import LocationError, SeqRecordError, SourceError
from seqrecord.schema import Frame, Schema
from seqrecord.sources.base import EpisodeInfo, Source
from seqrecord.sources.remote_files import RemoteFiles
from seqrecord.storage import Storage, StorageLike, open_storage

__all__ = ["RemoteSource", "is_url", "open_remote"]


def is_url(path: StorageLike) -> TypeGuard[str]:
    """Whether this is the text of a URL that is no local path."""
    return isinstance(path, str) and "://" in path and not path.lower().startswith("file://")


def open_remote(
    url: str | Storage, storage_options: Mapping[str, Any] | None, find: Callable[[Path], Source]
) -> Source:
    """The source that `find` finds at the path that stands for a URL, or for an open storage.

    Raises `LocationError` for a URL that is unclear, `SourceError` where nothing lies there.
    """
    files = RemoteFiles(open_storage(url, storage_options))
    path = files.root
    try:
        is_folder = bool(files.listing(path))
    except LocationError:  # nothing can be listed
        is_folder = False
    if not is_folder and isinstance(url, str):
        files, path = _beside(url, storage_options)
    with _told(files):
        if files.entry(path) is None:
            raise SourceError("nothing at this URL", file=str(path), expected="a folder or a file")
        source = find(path)
    return (_RemoteVideos if hasattr(source, "videos") else RemoteSource)(files, source)


def _beside(url: str, options: Mapping[str, Any] | None) -> tuple[RemoteFiles, Path]:
    """The files of the folder in which a URL's file lies, and its path."""
    place, mark, query = url.partition("?")
    above, _, name = place.rstrip("/").rpartition("/")
    if not name or above.endswith((":/", ":")):
        raise SourceError("nothing at this URL", file=place.rpartition("@")[2])
    files = RemoteFiles(open_storage(above + mark + query, options))
    return files, files.root / name


@dataclass(frozen=True)
class RemoteSource:
    """A source that reads `files`, which it keeps known to this process, or to any that gets it.

    A request that fails for good ends the conversion: it says nothing of an episode. Errors name
    files by their URLs, without credentials.
    """

    files: RemoteFiles  # pickled first: the source's paths mean nothing without it
    source: Source

    def schema(self) -> Schema:
        with _told(self.files):
            return self.source.schema()

    def episodes(self) -> Sequence[EpisodeInfo]:
        with _told(self.files):
            return self.source.episodes()

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with _told(self.files):
            yield from self.source.frames(info)


class _RemoteVideos(RemoteSource):
    """Of a source that has video."""

    def videos(self, info: EpisodeInfo) -> dict[str, Iterator[Gop]]:
        with _told(self.files):
            found: Mapping[str, Iterable[Gop]] = self.source.videos(info)  # type: ignore[attr-defined]
        return {name: self._gops(gops) for name, gops in found.items()}

    def _gops(self, gops: Iterable[Gop]) -> Iterator[Gop]:
        with _told(self.files):
            yield from gops


@contextmanager
def _told(files: RemoteFiles) -> Iterator[None]:
    """Errors with URLs in place of paths, and a request's failure as it is."""
    try:
        yield
    except SeqRecordError as error:
        failure, files.failure = files.failure, None
        if failure is not None and error is not failure:
            raise failure from None
        path, url = str(files.root), files.storage.url.rstrip("/")
        for name in ("message", "file", "expected", "got"):
            if isinstance(value := getattr(error, name), str):
                setattr(error, name, value.replace(path, url))
        raise
