"""Finds episodes that other writers left on a storage; copies those of unfinished files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from seqrecord.errors import FormatError, NotFoundError
from seqrecord.format.footer import EpisodePart, Footer, parse_footer, parse_header
from seqrecord.format.pages import aligned
from seqrecord.format.rows import HEADER_BYTES
from seqrecord.reading.index_building import complete_episodes
from seqrecord.reading.metadata import DamagedFile
from seqrecord.schema import Schema
from seqrecord.storage import Storage, Unfinished
from seqrecord.storage.ranges import ByteRange
from seqrecord.writing.chunking import StoredChunk, page_ranges, stored_chunk
from seqrecord.writing.record_files import ChunkWriter
from seqrecord.writing.stored_schema import DEFAULT_MAX_FILE_SIZE

_logger = logging.getLogger("seqrecord")


def recover(
    storage: Storage,
    footers: Mapping[str, Footer],
    unfinished: Sequence[Unfinished],
    committed: Collection[str],
    writer: str,
    schema: Schema | None,
    damaged: list[DamagedFile],
) -> dict[str, EpisodePart]:
    """All episodes that are whole in the files of other writers, by uid.

    `footers` are those of all finished record files, by path, and `schema` is that of the dataset,
    if there is one. Unfinished files of which a part is damaged are added to `damaged`. Episodes
    that are whole, or longer, only with what an unfinished file holds of them are copied from there
    into record files of `writer`, which are finished then; those of the keys `committed` are not.
    Every page that is copied is checked: after a loss of power any page of an unfinished file may
    be missing. An episode that is not whole is recovered up to the last flush up
    to which it is; if there is none it is not, and named in the log. Nothing of another writer is
    changed or removed: it may still be at work.

    Raises `StorageError` for what cannot be read, since that may pass.
    """

    def complete(notes: Sequence[_EpisodeNote]) -> dict[str, EpisodePart]:
        known = [(note.upload.path, note.footer) for note in notes]
        return complete_episodes([*footers.items(), *known], schema)

    whole = complete([])
    by_uid: dict[str, list[_EpisodeNote]] = {}
    for upload in unfinished:
        for note in _notes(storage, upload, damaged):
            by_uid.setdefault(note.part.uid, []).append(note)
    found = complete([note for notes in by_uid.values() for note in notes])
    writers: dict[Schema, ChunkWriter] = {}
    for uid, notes in by_uid.items():
        best = found.get(uid)
        while best is not None and best != whole.get(uid) and best.key not in committed:
            written = notes[0].footer.schema
            files = writers.get(written) or ChunkWriter(
                storage, written, writer=writer, max_file_size=DEFAULT_MAX_FILE_SIZE
            )
            writers[written] = files
            try:
                files.copy(best, _chunks(notes, _length(best)))
            except (FormatError, NotFoundError) as error:
                files.drop()
                _logger.warning(
                    "%s/%s: episode %s had %d frames but is not whole, and they are not kept: %s",
                    *(storage.url, notes[-1].upload.path, best.key, _length(best), error),
                )
                if isinstance(error, FormatError):
                    damaged.append(DamagedFile.of(notes[-1].upload.path, error))
                notes = [note for note in notes if _length(note.part) < _length(best)]
                best = complete(notes).get(uid)
            else:
                whole[uid] = best
    for files in writers.values():
        files.close()
    return whole


@dataclass(frozen=True)
class _EpisodeNote:
    """What a note says of an episode in an unfinished record file."""

    upload: Unfinished
    footer: Footer  # of this part alone

    @property
    def part(self) -> EpisodePart:
        (part,) = self.footer.episodes
        return part

    def chunk(self, group: int, number: int) -> StoredChunk:
        """A chunk of it. Raises `ChecksumError` for a page that is not as it was written."""
        ranges = page_ranges(self.footer.chunks[group][number])
        first = ranges[0].start
        data = _read(self.upload, ByteRange(first, ranges[-1].stop))
        pages = [data[item.start - first : item.stop - first] for item in ranges]
        return stored_chunk(self.footer, self.footer.schema, group, number, pages)


def _chunks(notes: Sequence[_EpisodeNote], num_frames: int) -> Iterator[StoredChunk]:
    """The chunks of an episode's first frames, each once, in the order in which they lie.

    Of several files, that with earlier frames comes first, whatever their names.
    """
    taken = set()
    firsts: dict[str, int] = {}
    for note in notes:
        first = min((int(r["first_frame"].min()) for r in note.footer.chunks if len(r)), default=0)
        firsts[note.upload.path] = min(first, firsts.get(note.upload.path, first))
    for note in sorted(notes, key=lambda note: firsts[note.upload.path]):
        rows = [
            (int(row["offset"]), group, number, int(row["first_frame"]))
            for group, chunks in enumerate(note.footer.chunks)
            for number, row in enumerate(chunks)
        ]
        for _, group, number, first_frame in sorted(rows):
            place = (group, first_frame)
            if place not in taken and first_frame < num_frames:
                taken.add(place)
                yield note.chunk(group, number)


def _length(part: EpisodePart) -> int:
    assert part.num_frames is not None
    return part.num_frames


def _notes(storage: Storage, upload: Unfinished, damaged: list[DamagedFile]) -> list[_EpisodeNote]:
    """What had ended, or been flushed, in the file, as far as its header and notes are whole."""
    try:
        checkpoints = upload.checkpoints()
        if not checkpoints:
            return []
        file_id = parse_header(_read(upload, ByteRange(0, HEADER_BYTES)))
    except NotFoundError:  # its writer has finished or given it up meanwhile
        return []
    except FormatError as error:
        damaged.append(DamagedFile.told(storage, upload.path, error))
        return []
    notes = []
    for size, data in checkpoints:
        try:
            footer = parse_footer(data, aligned(size))
        except FormatError as error:
            damaged.append(DamagedFile.told(storage, upload.path, error))
            continue
        if footer.file_id == file_id and [p.num_frames is None for p in footer.episodes] == [False]:
            notes.append(_EpisodeNote(upload, footer))
    return notes


def _read(upload: Unfinished, part: ByteRange) -> memoryview:
    data = memoryview(bytearray(part.length))
    upload.read_ranges([part], [data])
    return data
