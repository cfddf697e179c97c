"""Indexes of originals, created and reused in the user's folder.

::

    SEQRECORD_HOME/indexes/PLACE.json      entry: folder, layout, original's state, unread parts,
                                           numbers of episodes
    SEQRECORD_HOME/indexes/PLACE.lock      locked during creation
    SEQRECORD_HOME/indexes/PLACE-…/        the index: a dataset whose video is in the original

PLACE is a hash of the original's location, without credentials.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seqrecord.errors import (
    FormatError,
    LocationError,
    NotFoundError,
    SeqRecordError,
    SourceError,
)
from seqrecord.formats.converting.convert import ConvertReport, convert
from seqrecord.formats.indexing.source_opening import open_source
from seqrecord.in_place.externals import ExternalFiles
from seqrecord.in_place.files import NoOriginalError
from seqrecord.in_place.original_checks import check_new
from seqrecord.in_place.references import referable_features, reference_source
from seqrecord.store.feature_kinds import PIXEL_KINDS
from seqrecord.store.format.manifest import read_manifest
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.references import (
    EXTERNALS,
    MAX_LIST_BYTES,
    ExternalFile,
    ExternalList,
)
from seqrecord.store.originals.protocol import Source
from seqrecord.store.reading.filters import BadEpisodes
from seqrecord.store.reading.home import (
    file_lock,
    home,
    is_private,
    is_trusted,
    make_private,
    private_folder,
)
from seqrecord.store.reading.metadata import load_index
from seqrecord.store.reading.opening import FoundIndex
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.storage.url import parse_location, without_commit
from seqrecord.store.text import name_index
from seqrecord.store.units import Progress, format_size
from seqrecord.store.writing.destination import WriteMode

_logger = logging.getLogger("seqrecord")

# Of indexes: another number makes all again, where sources read originals in another way. Indexes
# without a number lack splits.
_LAYOUT = "3"
_LOGGED_LINES = 10  # lines of the inventory
_MAX_COPIED_BYTES = 64 << 10  # of a frame's feature


def index_source(source: Source, destination: StorageLike, **options: Any) -> ConvertReport:
    """Create an index of a source: refers to its video, or files, and copies other features.

    Large features that would have to be copied are left out, unless the source's `features` name
    them. `options` are arguments of `convert`. Raises `SourceError` for a source that cannot be
    read in place, and the errors of `convert`.
    """
    source = _indexable_source(source)
    codecs = {name: "raw" for name, spec in source.schema().items() if not spec.codec}
    return convert(source, destination, in_place=True, codecs=codecs, **options)


def find_index(
    location: StorageLike,
    storage_options: Mapping[str, Any] | None = None,
    *,
    workers: int | None = 1,
    **options: Any,
) -> FoundIndex | None:
    """Return the index of the original at `location`; creates it if needed.

    Episodes and features that cannot be read are left out, and recorded with the reasons. If the
    original has new episodes, they are added; after other changes the index is recreated, and so is
    one of another `_LAYOUT`. One process creates it, others wait. `None` if there is no LeRobot
    dataset and no folder of videos.

    `options` are `features`, and arguments of the original's format; each combination has an index
    of its own.
    `workers=1` starts no process: scripts that open a dataset need no main guard.

    Raises `NotFoundError` for an original that is indexed only on request, and `SourceError` for
    unknown or invalid options.
    """
    source = _source_at(location, storage_options, options)
    if source is None:
        return None
    with closing(open_storage(location, storage_options)) as storage:
        place, shown = storage.place, storage.url
    real_place = place if "://" in place else os.path.realpath(place)
    fact = os.fsencode(real_place) + (repr(sorted(options.items())).encode() if options else b"")
    name = hashlib.sha256(fact).hexdigest()[:32]
    index = _current_or_new_index(source, name, shown, workers)
    name_index(str(index.folder), shown)
    return index


def is_original(storage: Storage) -> bool:
    """Return whether a storage without a manifest contains an original of one format."""
    try:
        open_source(storage if "://" in storage.url else storage.url)
    except SeqRecordError:
        return False
    return True


def _current_or_new_index(source: Source, name: str, shown: str, workers: int | None) -> FoundIndex:
    index = _OriginalIndex(source, home() / "indexes" / name, shown, workers).current()
    if index is not None:
        return index
    waiting = f"{shown}: another process is creating its index"
    with private_folder("indexes", name) as folder, file_lock(folder / f"{name}.lock", waiting):
        return _OriginalIndex(source, folder / name, shown, workers).update()


def _source_at(
    location: StorageLike, storage_options: Mapping[str, Any] | None, options: dict[str, Any]
) -> Source | None:
    try:
        source = open_source(location, storage_options=storage_options, **options)
    except (NoOriginalError, NotFoundError, LocationError):  # the last: without folder listings
        return None
    # A tree of mixed files with some video is not detected automatically.
    is_whole = getattr(source, "is_whole", None)
    if is_whole is not None and is_whole():
        original: Source = reference_source(source)
        return original
    raise NotFoundError(
        "no dataset, but originals: convert them (`seqrecord write --src SRC`), or index those in "
        "docs/in-place.md (`seqrecord index SRC -o DST`), and open the result",
        file=location.url if isinstance(location, Storage) else parse_location(location).shown,
    )


def _indexable_source(source: Any) -> Any:
    """Return the source as read in place, without large features that would have to be copied.

    Raises `SourceError` for large features that the caller has named, and if nothing is left to
    refer to.
    """
    source = reference_source(source)
    schema, are_named = source.schema(), getattr(source, "features", None) is not None
    large_features = {
        name: reason for name, spec in schema.items() if (reason := _reason_to_pack(spec))
    }
    unreadable: Mapping[str, SourceError] = getattr(source, "unreadable", {})
    has_references = are_named or bool(referable_features(schema))
    has_pixels = any(spec.kind in PIXEL_KINDS for spec in schema.values())
    # An original of numbers and texts is copied whole; pictures never are.
    has_more = any((large_features, unreadable, has_pixels, not schema))
    if (large_features and (are_named or not hasattr(source, "leaving_out"))) or (
        has_more and not has_references
    ):
        for error in unreadable.values():
            raise error
        raise _unsuitable(schema, large_features)
    if not large_features:
        return source
    return source.leaving_out(
        {
            name: SourceError(f"{reason}: `seqrecord write` packs it", feature=name)
            for name, reason in large_features.items()
        }
    )


def _reason_to_pack(spec: FeatureSpec) -> str | None:
    """Why a feature can be neither a reference nor a small copy; `None` if it can."""
    if page_kind(spec).may_refer(spec):
        return None
    if spec.value == "array" and not spec.is_fixed:
        return f"its frames differ in size, {spec}"
    too_large = "more than 64 KiB a frame, and not in files of its own"
    return too_large if spec.nbytes > _MAX_COPIED_BYTES else None


def _unsuitable(schema: Schema, large: Collection[str]) -> SourceError:
    """The error of an original that an index cannot refer to, with its `large` features."""
    variable = [name for name in large if not schema[name].is_fixed]
    pictures = [name for name, spec in schema.items() if spec.kind in PIXEL_KINDS]
    problem = "it has large features that are neither video, nor images or arrays in files of "
    problem += "their own"
    if variable:
        problem = "frames of one feature differ in size"
    return SourceError(
        f"this original cannot be read in place: {problem}; select others (--features), or "
        "pack it with `seqrecord write --src`",
        feature=variable[0] if variable else None,
        expected="video or images of one size, and other features of at most 64 KiB a frame",
        got=", ".join(str(schema[name]) for name in variable or large or pictures) or "neither",
    )


def _size_of(folder: Path) -> str:
    """Return the size of an index in bytes, as text, without manifest and notes."""
    return str(sum(p.stat().st_size for p in folder.rglob("*/*") if p.is_file()))


def _as_content(file: ExternalFile) -> ExternalFile:
    """Return the file without its commit: on the Hub the identity is a content hash."""
    return replace(file, root=without_commit(file.root))


@dataclass
class _OriginalIndex:
    """An original and its index; `base` is the common prefix of the index's files."""

    source: Any
    base: Path
    shown: str
    workers: int | None

    def update(self) -> FoundIndex:
        """Return the index, created or updated to the original's present state."""
        note, identity = self._note(), self.source.identity()
        if note is not None and self._is_current(note, identity):
            return self._index_of(note)
        self.source = _indexable_source(self.source)
        begin, content = time.monotonic(), self._content()
        if note is not None and self._is_valid(note) and self._has_grown(note):
            folder = self._folder(note)
            report = self._index(folder, "append")
        else:
            folder = self.base.with_name(f"{self.base.name}-{secrets.token_hex(4)}")
            try:
                report = self._index(folder, "create")
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        new_note = {"original": self.shown, "identity": identity, "content": content}
        new_note |= {"folder": folder.name, "size": _size_of(folder), "layout": _LAYOUT}
        keys = load_index(LocalStorage(folder), report.manifest).keys.to_pylist()
        bad = BadEpisodes.of(
            [(e.info, e.cause) for e in report.bad if not e.is_other_size],
            [episode.info for episode in report.bad if episode.is_other_size],
            [info.key for info in self.source.episodes()],
            keys,
        )
        reasons = {name: str(error) for name, error in self.source.unreadable.items()}
        left_out = {"records": bad.records, "dropped": bad.dropped, "numbers": bad.numbers}
        new_note |= {"bad": json.dumps(left_out), "unreadable": json.dumps(reasons)}
        temporary = self.base.with_suffix(".json.new")
        temporary.write_text(json.dumps(new_note, indent=1))
        make_private(temporary)
        make_private(folder)
        temporary.replace(self.base.with_suffix(".json"))
        # A job may read it.
        kept_folders = [folder] if note is None else [folder, self._folder(note)]
        index_name = re.compile(rf"{self.base.name}-[0-9a-f]{{8}}")
        for index_folder in self.base.parent.glob(f"{self.base.name}-*"):
            if index_folder not in kept_folders and index_name.fullmatch(index_folder.name):
                shutil.rmtree(index_folder, ignore_errors=True)
        _logger.warning(
            "%s: indexed in %.1f s; the index is in %s and takes %s",
            *(self.shown, time.monotonic() - begin, folder, format_size(int(new_note["size"]))),
        )
        return self._index_of(new_note)

    def current(self) -> FoundIndex | None:
        """Return the index if it is up to date, else `None`."""
        if not (is_private(self.base.parent) and is_private(self.base.with_suffix(".json"))):
            return None
        note = self._note()
        if note is None or not self._is_current(note, self.source.identity()):
            return None
        return self._index_of(note)

    def _is_current(self, note: dict[str, str], identity: str) -> bool:
        return note["identity"] == identity and self._is_valid(note)

    def _is_valid(self, note: dict[str, str]) -> bool:
        """Whether it has this layout, and files that were new when indexed are the same."""
        if note["layout"] != _LAYOUT:
            return False
        with closing(ExternalFiles(LocalStorage(self._folder(note)))) as externals:
            try:
                check_new(externals)
            except SeqRecordError:  # also for damaged lists
                return False
        return True

    def _index_of(self, note: dict[str, str]) -> FoundIndex:
        bad = BadEpisodes(**json.loads(note["bad"]))
        return FoundIndex(self._folder(note), bad, json.loads(note["unreadable"]))

    def _folder(self, note: dict[str, str]) -> Path:
        return self.base.with_name(note["folder"])

    def _note(self) -> dict[str, str] | None:
        """Read the index's entry; `None` if missing or unusable."""
        with suppress(OSError, ValueError, SeqRecordError):
            note = json.loads(self.base.with_suffix(".json").read_text())
            names = {"original", "identity", "content", "folder", "size", "layout"}
            names |= {"bad", "unreadable"}
            if (
                isinstance(note, dict)
                and note.keys() == names
                and all(isinstance(value, str) for value in note.values())
            ):
                folder = self._folder(note)
                read_manifest(LocalStorage(folder))
                lists = [path.stem for path in (folder / EXTERNALS).glob("*.json")]
                # Parts of it may have been deleted.
                if (
                    note["size"] == _size_of(folder)
                    and all(map(is_trusted, lists))
                    and all(map(is_private, (folder, *folder.rglob("*"))))
                ):
                    return note
        return None

    def _content(self, previous_content: str = "") -> str:
        """Return the source's identity of its copied data; empty if only video data is copied."""
        content = getattr(self.source, "content", None)
        return "" if content is None else str(content(previous_content))

    def _has_grown(self, note: dict[str, str]) -> bool:
        """Return whether all copied and referenced data of the index is unchanged."""
        folder, is_same = self._folder(note), False
        with suppress(ValueError):  # a damaged entry
            is_same = note["content"] == self._content(note["content"])
        current_files = set(map(_as_content, self.source.external_files().values()))
        copied_files = read_manifest(LocalStorage(folder)).copied
        has_own = hasattr(self.source, "copied_files")
        covered_lists = copied_files.lists if copied_files and has_own else ()  # by the content
        for path in (folder / EXTERNALS).glob("*.json"):
            if path.stem in covered_lists:
                continue
            with suppress(OSError, FormatError):
                external_list = ExternalList.parse(path.read_bytes()[:MAX_LIST_BYTES], path.stem)
                if current_files.issuperset(map(_as_content, external_list.files)):
                    continue
            return False
        return is_same

    def _index(self, folder: Path, mode: WriteMode) -> ConvertReport:
        """Index the original."""
        from tqdm import tqdm

        with tqdm(desc=f"indexing {self.shown}", unit="frame", leave=False, disable=None) as bar:

            def show(progress: Progress) -> None:
                bar.total = progress.total
                bar.update(progress.done - bar.n)

            report = index_source(
                *(self.source, folder),
                progress=show,
                mode=mode,
                skip_bad_episodes=True,
                workers=self.workers,
            )
        inventory = report.inventory
        level = logging.WARNING if inventory.left_out_data or report.bad else logging.INFO
        for line in inventory.lines(_LOGGED_LINES):
            _logger.log(level, "%s: %s", self.shown, line)
        return report
