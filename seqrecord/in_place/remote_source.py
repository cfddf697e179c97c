"""Sources over remote files, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from seqrecord.errors import LocationError, SeqRecordError
from seqrecord.in_place.file_types import explained
from seqrecord.in_place.files import NoOriginalError
from seqrecord.in_place.remote import RemoteFiles
from seqrecord.store.originals.protocol import EpisodeInfo, Source
from seqrecord.store.originals.wrapping import Scope, SourceWrapper
from seqrecord.store.schema import Frame, Schema
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import open_storage

_NOTHING, _ORIGINAL = "nothing at the URL", "a folder or a file"


def open_remote(
    url: str | Storage, storage_options: Mapping[str, Any] | None, find: Callable[[Path], Source]
) -> Source:
    """Open the source that `find` detects below a URL or in an open storage.

    `find` gets the path that stands for the URL. Raises `LocationError` for an unclear URL and
    `NoOriginalError` if it contains nothing.
    """
    files = RemoteFiles(open_storage(url, storage_options))
    path = files.root
    try:
        is_folder = bool(files.listing(path))
    except LocationError:  # nothing can be listed
        is_folder = False
    if not is_folder and isinstance(url, str):
        files, path = _beside(url, storage_options)
    with _urls_in_errors(files):
        if files.entry(path) is None:
            raise NoOriginalError(_NOTHING, file=str(path), expected=_ORIGINAL)
        source = find(path)
    return RemoteSource(files, source)


def _beside(url: str, options: Mapping[str, Any] | None) -> tuple[RemoteFiles, Path]:
    """Return the files of a URL's parent folder, and the path of the URL's file."""
    above, name = folder_and_name(url)
    if not name or above.partition("?")[0].endswith((":/", ":")):
        place = url.partition("?")[0].rpartition("@")[2]
        raise NoOriginalError(_NOTHING, file=place, expected=_ORIGINAL)
    files = RemoteFiles(open_storage(above, options))
    return files, files.root / name


def folder_and_name(url: str) -> tuple[str, str]:
    """Return the URL of a file's folder, with the file's query, and the name of the file.

    A percent sign encodes a character in URLs of the web and of the Hub; object names of others
    may contain it.
    """
    place, mark, query = url.partition("?")
    above, _, name = place.rstrip("/").rpartition("/")
    is_encoded = place.lower().startswith(("https://", "http://", "hf://"))
    return above + mark + query, unquote(name) if is_encoded else name


@dataclass(frozen=True)
class RemoteSource(SourceWrapper):
    """A source over remote files.

    It registers `files` in each process that has the source. A failed request ends the conversion,
    since it is not an error of the episode. Errors show URLs without credentials.
    """

    files: RemoteFiles  # pickled first: the source's paths need it
    source: Source

    unchanged = Scope.VALUES

    def schema(self) -> Schema:
        with _urls_in_errors(self.files):
            return self.source.schema()

    def episodes(self) -> Sequence[EpisodeInfo]:
        with _urls_in_errors(self.files):
            return self.source.episodes()

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with _urls_in_errors(self.files):
            yield from self.source.frames(info)

    def pass_on(self, name: str) -> Any:
        with _urls_in_errors(self.files):
            attribute = super().pass_on(name)
        if not callable(attribute):
            return attribute

        def call(*args: Any) -> Any:
            with _urls_in_errors(self.files):
                returned = attribute(*args)
            if name == "videos":
                return {feature: self._items(gops) for feature, gops in returned.items()}
            if isinstance(returned, Source):
                return replace(self, source=returned)
            return self._items(returned) if isinstance(returned, Iterator) else returned

        return call

    def _items(self, items: Iterable[Any]) -> Iterator[Any]:
        with _urls_in_errors(self.files):
            yield from items


def narrowed(source: Source, features: Sequence[str]) -> Source:
    """Return a source with these features; the same one if it has no argument `features`."""
    any_source: Any = source
    if is_dataclass(any_source) and isinstance(source, SourceWrapper):
        return cast(
            "Source", replace(cast("Any", source), source=narrowed(source.source, features))
        )
    if is_dataclass(any_source) and any(field.name == "features" for field in fields(any_source)):
        any_source = replace(cast("Any", any_source), features=tuple(features))
    return cast("Source", any_source)


@contextmanager
def _urls_in_errors(files: RemoteFiles) -> Iterator[None]:
    """Replace paths in errors by URLs, add file types, or raise the failed request instead."""
    try:
        with explained():
            yield
    except SeqRecordError as error:
        failure, files.failure = files.failure, None
        if failure is not None and error is not failure:
            try:
                raise failure from None
            finally:
                del failure  # its traceback refers to this frame
        path, url = str(files.root), files.storage.url.rstrip("/")
        for name in ("message", "file", "expected", "got"):
            if isinstance(value := getattr(error, name), str):
                setattr(error, name, value.replace(path, url))
        raise
