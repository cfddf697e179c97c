"""Tables joined to a dataset, packed once into the user's folder as companion datasets.

::

    SEQRECORD_HOME/tables/DIGEST/       a dataset with the table's values, by episode and frame
    SEQRECORD_HOME/tables/DIGEST.lock   locked while it is written

DIGEST covers the table's bytes, and keys and lengths of the dataset's episodes; for tables with
numbers of LeRobot's episodes, also their metadata.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from seqrecord.errors import ClipError, FormatError, JoinError, NotFoundError, located
from seqrecord.formats.converting.convert import convert
from seqrecord.formats.indexing.table_source import TableSource
from seqrecord.in_place.files import on_disk
from seqrecord.in_place.remote import RemoteFiles, is_url
from seqrecord.in_place.remote_source import folder_and_name
from seqrecord.store.reading.dataset import Dataset, open_packed
from seqrecord.store.reading.home import file_lock, is_private, make_private, private_folder
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.url import local_path, parse_location
from seqrecord.store.tables.arrow_tables import ArrowTable, TableLike, digest_of
from seqrecord.store.tables.table_places import INDEX, EpisodeNames, place_names
from seqrecord.store.text import name_index
from seqrecord.store.units import Progress, format_size

_LAYOUT = 1  # of companions: another number packs all tables again
_KEPT_SECONDS = 30 * 86400.0  # without use
_COMPANION = re.compile(r"[0-9a-f]{40}(-[0-9a-f]{8})?")
_logger = logging.getLogger("seqrecord")


@contextmanager
def joined_table(
    item: TableLike, storage_options: Mapping[str, Any] | None = None
) -> Iterator[JoinedTable]:
    """Provide a table for `join=`; one at a URL is copied to the local disk.

    Raises `JoinError` for a table that cannot be read, or names no episodes.
    """
    with _join_errors(), _local_table(item, storage_options) as (local_table, shown):
        table = ArrowTable.open(local_table, shown)
        with located(ClipError, file=table.shown):
            places = place_names(table.schema.names)
        yield JoinedTable(table, places)


@dataclass(frozen=True)
class JoinedTable:
    """A table, and its columns that name episodes and frames."""

    table: ArrowTable
    places: Sequence[str]

    @property
    def features(self) -> list[str]:
        """Names of the value columns."""
        return [name for name in self.table.schema.names if name not in self.places]

    def open(self, dataset: Dataset) -> Dataset:
        """Open the table as a dataset with the episodes of `dataset` that it names.

        It is packed if this user has no copy for the same bytes and episodes. One process packs it,
        others wait. Episodes without a row are not in the result; frames without one, and nulls,
        are missing values.

        Raises `JoinError` for a row that fits no frame.
        """
        table, names = self.table, dataset.contents.episode_names
        with _join_errors(), private_folder("tables") as folder:
            with located(ClipError, file=table.shown):
                digest = _digest(table, self.places, names)
            companion = _opened(folder / digest)
            if companion is None:
                waiting = f"{table.shown}: another process is packing it"
                with file_lock(folder / f"{digest}.lock", waiting):
                    companion = _opened(folder / digest)
                    if companion is None:
                        _pack(table, names, folder / digest)
                        companion = open_packed(folder / digest)
        name_index(companion.url, table.shown)
        for inventory in companion.inventories:
            for row in inventory.left_out_data:
                _logger.warning("%s: %s", table.shown, row)
        return companion


@contextmanager
def _join_errors() -> Iterator[None]:
    """Raise `ClipError` of the block as `JoinError`."""
    try:
        yield
    except ClipError as error:
        raise JoinError(error.message, **error.context()) from error


@contextmanager
def _local_table(
    table: TableLike, options: Mapping[str, Any] | None
) -> Iterator[tuple[TableLike, str | None]]:
    """Provide a table, copied to the local disk if it is at a URL, and its path or URL."""
    if isinstance(table, str) and is_url(table):
        folder, name = folder_and_name(table)
        files = RemoteFiles(open_storage(folder, options))
        shown = parse_location(table).shown
        if files.entry(files.root / name) is None:
            raise NotFoundError("no such table", file=shown)
        with on_disk(files.root / name) as path:
            yield path, shown
    elif isinstance(table, (str, os.PathLike)):
        path = local_path(table, "join")
        yield path, str(path)
    else:
        yield table, None


def _digest(table: ArrowTable, places: Sequence[str], names: EpisodeNames) -> str:
    """The name of a table's companion."""
    columns = {"key": names.keys, "num_frames": pa.array(names.num_frames)}
    if {"episode_index", INDEX} & {*places}:  # numbers may be in the metadata
        columns["metadata"] = names.metadata
    facts = f"{_LAYOUT} {table.digest()} {digest_of(pa.table(columns))}"
    if names.numbers is not None:
        left_out = [
            (e.number, e.num_frames, e.metadata.get("episode_index")) for e in names.left_out
        ]
        facts += f" {names.numbers.tolist()} {left_out}"
    return hashlib.sha256(facts.encode()).hexdigest()[:40]


def _opened(folder: Path) -> Dataset | None:
    """Open a companion; `None` if there is none, or if parts of it were deleted."""
    if not folder.is_dir() or not is_private(folder):
        return None
    try:
        companion = open_packed(folder)
        for file in companion.contents.manifest.record_files:
            if (folder / file.path).stat().st_size != file.size:
                raise FormatError("record file has another size")
    except (NotFoundError, FormatError, OSError):
        return None
    with suppress(OSError):
        os.utime(folder)  # its last use
    return companion


def _pack(table: ArrowTable, names: EpisodeNames, folder: Path) -> None:
    """Write a companion; it appears when it is complete."""
    from tqdm import tqdm

    begin = time.monotonic()
    _remove_unused(folder.parent)
    new_folder = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}")
    new_folder.mkdir(mode=0o700)
    name_index(str(new_folder / "companion"), table.shown)
    try:
        with (
            closing(TableSource(table, names, new_folder)) as source,
            tqdm(desc=f"packing {table.shown}", unit="frame", leave=False, disable=None) as bar,
        ):

            def show(progress: Progress) -> None:
                bar.total = progress.total
                bar.update(progress.done - bar.n)

            convert(source, new_folder / "companion", workers=1, progress=show)
        make_private(new_folder)
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        (new_folder / "companion").rename(folder)
    finally:
        shutil.rmtree(new_folder, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    _logger.info(
        "%s: packed in %.1f s; the companion is in %s and takes %s",
        *(table.shown, time.monotonic() - begin, folder, format_size(size)),
    )


def _remove_unused(folder: Path) -> None:
    """Remove companions, and parts of interrupted ones, that were not used for 30 days."""
    now = time.time()
    for path in folder.iterdir():
        with suppress(OSError):
            if _COMPANION.fullmatch(path.name) and now - path.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
