"""Record files of chunks that are copied from others, with all that these say of their episodes."""

from __future__ import annotations

from seqrecord.format import EpisodePart
from seqrecord.schema import Schema
from seqrecord.storage import Storage
from seqrecord.writing.chunking import StoredChunk
from seqrecord.writing.record_files import OpenFile

__all__ = ["CopiedFiles"]


class CopiedFiles:
    """Puts chunks into record files of about `record_bytes`, one after the other.

    An episode of which several files hold a part goes into one file where its chunks follow each
    other there, and else stays in parts. Nothing of a file that is not finished can be recovered:
    it is a copy.
    """

    def __init__(self, storage: Storage, schema: Schema, writer: str, record_bytes: int) -> None:
        self._storage = storage
        self._schema = schema
        self._writer = writer
        self._record_bytes = record_bytes
        self._file: OpenFile | None = None
        self._uids: set[str] = set()  # of the open file
        self._part: EpisodePart | None = None  # the last one
        self._ends: dict[int, int] = {}  # by group, where the next chunk of that episode begins

    def add(self, part: EpisodePart, chunk: StoredChunk) -> None:
        """Add a chunk of an episode, of which another file says `part`."""
        first, num_frames = int(chunk.row["first_frame"][0]), int(chunk.row["num_frames"][0])
        if self._file is not None and (
            self._file.is_full(self._record_bytes) or not self._fits(part, chunk.group, first)
        ):
            self.close()
        if self._file is None:
            self._file = OpenFile(self._storage, self._schema, self._writer, part.ordinal)
        if part.uid not in self._uids:
            self._ends = {}
        elif part != self._part:
            self._file.say(part)
        self._uids.add(part.uid)
        self._part = part
        self._file.add(part, chunk)
        self._ends[chunk.group] = first + num_frames

    def close(self) -> None:
        """Finish the open file."""
        if self._file is not None and self._file.finish():
            self._file.upload.commit()
        self._file, self._part = None, None
        self._uids, self._ends = set(), {}

    def abort(self) -> None:
        """Leave nothing of the open file."""
        if self._file is not None:
            self._file.upload.abort()
            self._file = None

    def _fits(self, part: EpisodePart, group: int, first_frame: int) -> bool:
        """Whether a chunk may stand in the open file, beside what is there of its episode.

        Only one part may tell the episode's length, and the chunks of a group follow each other.
        """
        if part.uid not in self._uids:
            return True
        last = self._part
        if last is None or last.uid != part.uid:
            return False
        return (last == part or last.num_frames is None) and self._ends.get(
            group, first_frame
        ) == first_frame
