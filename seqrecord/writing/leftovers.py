"""Finds episodes that other writers left on a storage; copies those of unfinished files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, FormatError, NotFoundError
from seqrecord.format import HEADER_BYTES, EpisodePart, Footer, parse_footer, parse_header
from seqrecord.format.pages import aligned, page_offsets
from seqrecord.reading.index_building import complete_episodes
from seqrecord.storage import Storage, Unfinished
from seqrecord.storage.ranges import ByteRange
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import DEFAULT_RECORD_BYTES

__all__ = ["recover"]

_logger = logging.getLogger("seqrecord")


def recover(
    storage: Storage,
    footers: Mapping[str, Footer],
    unfinished: Sequence[Unfinished],
    committed: Collection[str],
    writer: str,
) -> dict[str, EpisodePart]:
    """All episodes that are whole in the files of other writers, by uid.

    `footers` are those of all finished record files, by path. Episodes that are whole only with
    what an unfinished file holds of them are copied from there into record files of `writer`, which
    are finished then; those of the keys `committed` are not. Every page that is copied is checked,
    since nothing tells what of an unfinished file a machine had on disk when it went down; an
    episode that is not whole is not recovered, and named in the log. Nothing of another writer is
    changed or removed: it may still be at work.

    Raises `StorageError` for what cannot be read, since that may pass.
    """
    pieces = [piece for upload in unfinished for piece in _pieces(storage, upload)]
    finished = list(footers.items())
    whole = complete_episodes(finished)
    found = complete_episodes([*finished, *((p.upload.path, p.footer) for p in pieces)])
    files: RecordFileWriter | None = None
    for piece in pieces:
        (part,) = piece.footer.episodes
        if part.uid in whole or part.uid not in found or part.key in committed:
            continue
        files = files or RecordFileWriter(
            storage, piece.footer.schema, writer=writer, record_bytes=DEFAULT_RECORD_BYTES
        )
        try:
            files.copy(piece.footer, piece.pages)
        except (FormatError, NotFoundError) as error:
            files.drop()
            _logger.warning(
                "%s/%s: episode %s had ended but is not whole, and is not kept: %s",
                *(storage.url, piece.upload.path, part.key, error),
            )
        else:
            whole[part.uid] = found[part.uid]
    if files is not None:
        files.close()
    return whole


@dataclass(frozen=True)
class _Piece:
    """An episode's last part, or all of it, in an unfinished record file."""

    upload: Unfinished
    footer: Footer  # of this part alone

    def pages(self, row: npt.NDArray[Any]) -> list[memoryview]:
        """The pages of a chunk. Raises `ChecksumError` for one that is not as it was written."""
        offsets = int(row["offset"]) + page_offsets(row["pages"]["length"])
        data = _read(self.upload, ByteRange(int(offsets[0]), int(offsets[-1])))
        pages = []
        for start, page in zip((offsets - offsets[0]).tolist(), row["pages"], strict=False):
            pages.append(data[start : start + int(page["length"])])
            if crc32c(pages[-1]) != page["crc32c"]:
                raise ChecksumError(
                    "a page does not match its checksum", offset=int(offsets[0]) + start
                )
        return pages


def _pieces(storage: Storage, upload: Unfinished) -> list[_Piece]:
    """What had ended in the file, as far as its header and notes are whole."""
    try:
        checkpoints = upload.checkpoints()
        if not checkpoints:
            return []
        file_id = parse_header(_read(upload, ByteRange(0, HEADER_BYTES)))
    except NotFoundError:  # its writer has finished or given it up meanwhile
        return []
    except FormatError as error:
        _logger.warning("%s/%s: nothing of it is kept: %s", storage.url, upload.path, error)
        return []
    pieces = []
    for size, note in checkpoints:
        try:
            footer = parse_footer(note, aligned(size))
        except FormatError as error:
            _logger.warning("%s/%s: a note is not kept: %s", storage.url, upload.path, error)
            continue
        if footer.file_id == file_id and [p.num_frames is None for p in footer.episodes] == [False]:
            pieces.append(_Piece(upload, footer))
    return pieces


def _read(upload: Unfinished, part: ByteRange) -> memoryview:
    data = memoryview(bytearray(part.length))
    upload.read_ranges([part], [data])
    return data
