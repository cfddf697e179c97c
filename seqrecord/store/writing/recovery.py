"""Finds episodes of other writers on a storage; copies episodes out of unfinished files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from seqrecord.errors import ChecksumError, FormatError, NotFoundError, SeqRecordError
from seqrecord.store.checksum import Buffer
from seqrecord.store.format.footer import RECORDS, EpisodePart, Footer, parse_footer, parse_header
from seqrecord.store.format.pages import aligned, page_digest
from seqrecord.store.format.rows import HEADER_BYTES, features_of
from seqrecord.store.reading.index_building import complete_episodes, declared_rates
from seqrecord.store.reading.metadata import DamagedFile
from seqrecord.store.schema import Schema
from seqrecord.store.storage.base import Storage, Unfinished
from seqrecord.store.storage.ranges import ByteRange
from seqrecord.store.text import counted, shown_place
from seqrecord.store.units import format_size
from seqrecord.store.writing.chunking import StoredChunk, page_ranges, stored_chunk
from seqrecord.store.writing.record_files import ChunkWriter

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
    """All complete episodes in the files of other writers, by uid.

    An episode that is complete, or longer, only with an unfinished file is copied into record files
    of `writer`, which are finished then. Every copied page is checked, since after a loss of power
    any page of an unfinished file may be missing. An incomplete episode is recovered up to the last
    flush with all its chunks; the log names episodes without one. Files of other writers are not
    changed: their writers may still be running.

    Args:
        footers: footers of all finished record files, by path.
        unfinished: unfinished record files.
        committed: keys of episodes not to copy.
        writer: id of the writer that makes the copies.
        schema: of the dataset, if there is one.
        damaged: gets unfinished files that are damaged in part.

    Raises `StorageError` for a failed read, since a later read may succeed.
    """

    def complete(notes: Sequence[_EpisodeNote]) -> dict[str, EpisodePart]:
        note_footers = [(note.upload.path, note.footer) for note in notes]
        return complete_episodes([*footers.items(), *note_footers], schema)

    recovered = complete([])
    by_uid: dict[str, list[_EpisodeNote]] = {}
    for upload in unfinished:
        for note in _notes(storage, upload, damaged):
            by_uid.setdefault(note.part.uid, []).append(note)
    candidates = complete([*chain.from_iterable(by_uid.values())])
    note_footers = (note.footer for note in chain.from_iterable(by_uid.values()))
    rates = declared_rates([*footers.values(), *note_footers])
    writers: dict[Schema, ChunkWriter] = {}
    for uid, notes in by_uid.items():
        part = candidates.get(uid)
        while part is not None and part != recovered.get(uid) and part.key not in committed:
            file_schema = notes[0].footer.schema
            files = writers.get(file_schema) or ChunkWriter(storage, file_schema, writer=writer)
            writers[file_schema] = files
            try:
                files.copy(part, _chunks(notes, _length(part)), declared_fps=rates.get(uid))
            except (FormatError, NotFoundError) as error:
                files.drop()
                _logger.warning(
                    "%s/%s: episode %s lost %d flushed frames, which are incomplete: %s",
                    *(storage.url, notes[-1].upload.path, part.key, _length(part), error),
                )
                if isinstance(error, FormatError):
                    damaged.append(DamagedFile.of(notes[-1].upload.path, error))
                notes = [note for note in notes if _length(note.part) < _length(part)]
                part = complete(notes).get(uid)
            else:
                recovered[uid] = part
    for files in writers.values():
        files.close()
    return recovered


def name_unfinished(storage: Storage) -> None:
    """Log the unfinished files that a resume keeps: another writer may still use them."""
    with suppress(SeqRecordError):  # the dataset is committed
        uploads = storage.unfinished(RECORDS)
        nbytes = sum(max((size for size, _ in u.checkpoints()), default=0) for u in uploads)
        if uploads:
            _logger.warning(
                "%s: %s left by interrupted runs, at least %s, the first: %s; when no other writer "
                "is running, `seqrecord clean --older-than 0 %s` deletes them",
                *(storage.url, counted(len(uploads), "unfinished file"), format_size(nbytes)),
                *(uploads[0].path, shown_place(storage.url)),
            )


@dataclass(frozen=True)
class _EpisodeNote:
    """A note of an episode in an unfinished record file."""

    upload: Unfinished
    footer: Footer  # of this part only

    @property
    def part(self) -> EpisodePart:
        (part,) = self.footer.episodes
        return part

    def chunk(self, group: int, number: int) -> StoredChunk:
        """Read a chunk. Raises `ChecksumError` for a page without its CRC32C or digest."""
        ranges = page_ranges(self.footer.chunks[group][number])
        start = ranges[0].start
        data = _read(self.upload, ByteRange(start, ranges[-1].stop))
        pages = [data[item.start - start : item.stop - start] for item in ranges]
        chunk = stored_chunk(self.footer, self.footer.schema, group, number, pages)
        _check_digests(chunk, self.footer.schema, ranges, pages)
        return chunk


def _check_digests(
    chunk: StoredChunk, schema: Schema, ranges: Sequence[ByteRange], pages: Sequence[Buffer]
) -> None:
    """Raise `ChecksumError` for a page that does not match its digest, which is copied too."""
    num_frames, specs = int(chunk.row["num_frames"][0]), schema.group(chunk.group)
    places = features_of(schema)[chunk.group].tolist()
    for column, (name, place) in enumerate(zip(specs, places, strict=True)):
        digest = page_digest(pages[column], num_frames, chunk.gaps.get(place))
        stored_digest = chunk.row["pages"]["digest"][0, column].tobytes()
        if digest != stored_digest and not specs[name].is_dropped:
            raise ChecksumError(
                "a page does not match its digest",
                offset=ranges[column].start,
                feature=name,
                expected=stored_digest.hex(),
                got=digest.hex(),
            )


def _chunks(notes: Sequence[_EpisodeNote], num_frames: int) -> Iterator[StoredChunk]:
    """The chunks of an episode's first `num_frames` frames, each once, in file order.

    If there are several files, the file with earlier frames comes first.
    """
    copied_places = set()
    firsts: dict[str, int] = {}
    for note in notes:
        min_frame = min(
            (int(r["first_frame"].min()) for r in note.footer.chunks if len(r)), default=0
        )
        firsts[note.upload.path] = min(min_frame, firsts.get(note.upload.path, min_frame))
    for note in sorted(notes, key=lambda note: firsts[note.upload.path]):
        rows = [
            (int(row["offset"]), group, number, int(row["first_frame"]))
            for group, chunks in enumerate(note.footer.chunks)
            for number, row in enumerate(chunks)
        ]
        for _, group, number, first_frame in sorted(rows):
            place = (group, first_frame)
            if place not in copied_places and first_frame < num_frames:
                copied_places.add(place)
                yield note.chunk(group, number)


def _length(part: EpisodePart) -> int:
    assert part.num_frames is not None
    return part.num_frames


def _notes(storage: Storage, upload: Unfinished, damaged: list[DamagedFile]) -> list[_EpisodeNote]:
    """Notes of ended or flushed episodes in a file, as far as its header and notes are intact."""
    try:
        checkpoints = upload.checkpoints()
        if not checkpoints:
            return []
        file_id = parse_header(_read(upload, ByteRange(0, HEADER_BYTES)))
    except NotFoundError:  # its writer has finished or removed it meanwhile
        return []
    except FormatError as error:
        damaged.append(DamagedFile.logged(storage, upload.path, error))
        return []
    notes = []
    for size, data in checkpoints:
        try:
            footer = parse_footer(data, aligned(size))
        except FormatError as error:
            damaged.append(DamagedFile.logged(storage, upload.path, error))
            continue
        if footer.file_id == file_id and [p.num_frames is None for p in footer.episodes] == [False]:
            notes.append(_EpisodeNote(upload, footer))
    return notes


def _read(upload: Unfinished, part: ByteRange) -> memoryview:
    data = memoryview(bytearray(part.length))
    upload.read_ranges([part], [data])
    return data
