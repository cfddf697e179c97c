"""The index: episode, chunk and gap tables, as Arrow IPC that readers memory-map.

There is a chunk table for each group of features. A row of it is one chunk, in episode order and
front to back, so an episode's chunks of a group lie together.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import FormatError, located
from seqrecord.format.lags import EpisodeLags, with_lags
from seqrecord.format.pages import ALIGNMENT, chunk_bytes
from seqrecord.format.rows import (
    GAP_ROW,
    GAPS,
    HEADER_BYTES,
    MAX_EPISODE_FRAMES,
    MAX_INDEX_TEXT,
    check_gaps,
    check_lengths,
    check_pages,
    check_rows,
    chunks_schema,
    count_words,
    decode_table,
    encode_table,
    episodes_schema,
    features_of,
    present_frames,
    split_gaps,
    table_names,
    times_schema,
)
from seqrecord.format.text import FORBIDDEN_IN_KEY, MAX_KEY_LENGTH, parse_metadata
from seqrecord.processes.forks import cached_property
from seqrecord.schema import Schema

BLOCK_PAGES = 1 << 18  # that are checked at a time
_FEATURE_BITS = 16
_FORBIDDEN = re.compile(FORBIDDEN_IN_KEY)
_FEW_KEYS = 1 << 12  # are checked without pyarrow.compute


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """All chunks of one group of features, as arrays; E episodes, C chunks, F features.

    Chunks are in the order of their episodes, front to back; they are of any length, and those of
    an episode cover its frames. Chunk i holds the frames `[first_frame[i], first_frame[i] +
    num_frames[i])` of its episode, at byte `offset[i]` of record file `file[i]` of the manifest. V
    of the features have a variable dimension: of each of their pages, `largest_frame` is the number
    of bytes of its largest frame when it is decoded.
    """

    schema: Schema  # of the group
    features: npt.NDArray[np.int64]  # [F], their places in the dataset's schema
    num_chunks: npt.NDArray[np.int64]  # [E]
    first_frame: npt.NDArray[np.uint32]  # [C]
    num_frames: npt.NDArray[np.uint32]  # [C]
    file: npt.NDArray[np.uint32]  # [C]
    offset: npt.NDArray[np.uint64]  # [C]
    page_length: npt.NDArray[np.uint32]  # [C, F]
    page_crc32c: npt.NDArray[np.uint32]  # [C, F]
    largest_frame: npt.NDArray[np.uint32]  # [C, V]
    external: npt.NDArray[np.uint32]  # [C], bytes of other files that pages refer to
    gaps: npt.NDArray[Any]  # of GAP_ROW

    @cached_property
    def first_chunk(self) -> npt.NDArray[np.int64]:
        """An episode's first row in this table, [E]."""
        first: npt.NDArray[np.int64] = np.cumsum(self.num_chunks) - self.num_chunks
        return first

    @cached_property
    def chunk_frames(self) -> npt.NDArray[np.int64]:
        """Frames of all chunks of an episode but the last, which has no more; else 0: int64 [E].

        Of an episode of one chunk it is that chunk's.
        """
        cut = self.num_frames[self.first_chunk].astype(np.int64)
        last = self.first_chunk + self.num_chunks - 1
        for begin in range(0, len(self.file), BLOCK_PAGES):
            stop = min(begin + BLOCK_PAGES, len(self.file))
            held = self.num_frames[begin:stop].astype(np.int64)
            episode = self._episodes(begin, stop)
            end = np.zeros(stop - begin, np.bool_)
            end[last[episode[0] : episode[-1]] - begin] = True
            end[-1] = last[episode[-1]] == stop - 1
            other = (held > cut[episode]) | (~end & (held != cut[episode]))
            cut[episode[other]] = 0
        return cut

    def episode_of(self, row: int) -> int:
        """The episode of a chunk."""
        return int(np.searchsorted(self.first_chunk, row, side="right")) - 1

    def rows_of(self, episode: int) -> slice:
        """The rows of an episode's chunks."""
        first = int(self.first_chunk[episode])
        return slice(first, first + int(self.num_chunks[episode]))

    def chunks_of(
        self, episode: int, frames: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int64]:
        """Rows of the chunks that hold these frames of an episode, int64 [n]."""
        rows = self.rows_of(episode)
        starts = self.first_frame[rows]
        found: npt.NDArray[np.int64] = rows.start - 1 + np.searchsorted(starts, frames, "right")
        return found

    def present(self, row: int, feature: int) -> npt.NDArray[np.bool_] | None:
        """Which frames of a chunk have a feature, bool [frames]; `None` where all have it.

        `feature` is its place in the dataset's schema.
        """
        key = (row << _FEATURE_BITS) + feature
        start, stop = np.searchsorted(self._gap_order, [key, key + 1])
        if start == stop:
            return None
        return present_frames(self.gaps[start:stop], int(self.num_frames[row]))

    def gaps_of(self, first: int, stop: int) -> npt.NDArray[Any]:
        """The gap rows of the chunks `[first, stop)`."""
        bounds = [first << _FEATURE_BITS, stop << _FEATURE_BITS]
        rows: npt.NDArray[Any] = self.gaps[slice(*np.searchsorted(self._gap_order, bounds))]
        return rows

    @cached_property
    def _gap_order(self) -> npt.NDArray[np.int64]:
        first: npt.NDArray[np.int64] = self.gaps["chunk"].astype(np.int64) << _FEATURE_BITS
        order: npt.NDArray[np.int64] = first + self.gaps["feature"]
        return order

    def _episodes(self, begin: int, stop: int) -> npt.NDArray[np.int64]:
        """The episodes of the chunks `[begin, stop)`, int64 [stop - begin]."""
        episode = self.episode_of(begin)
        last = int(np.searchsorted(self.first_chunk, stop))
        starts = np.zeros(stop - begin, np.int64)
        starts[self.first_chunk[episode + 1 : last] - begin] = 1
        return episode + np.cumsum(starts)

    def check_frames(
        self, num_frames: npt.NDArray[np.int64], release: Callable[[], None], block_pages: int
    ) -> None:
        """The chunks of every episode follow each other and cover it; `num_frames` is int64 [E].

        Block by block: what is computed from a row is several times as large as the row.
        """
        end = 0  # of the chunk before
        for begin in range(0, len(self.file), block_pages):
            stop = min(begin + block_pages, len(self.file))
            held = self.num_frames[begin:stop].astype(np.int64)
            check_lengths(held, 0, first=begin)
            first = self.first_frame[begin:stop].astype(np.int64)
            episode = self._episodes(begin, stop)
            opens = np.diff(episode, prepend=self.episode_of(begin - 1) if begin else -1) > 0
            ends = np.concatenate(([end], first + held))
            message = "a chunk does not follow the one before it"
            check_rows(first == np.where(opens, 0, ends[:-1]), message, 0, first=begin)
            closes = np.append(opens[1:], stop == len(self.file) or self._opens(stop))
            total = num_frames[episode]
            fits = np.where(closes, ends[1:] == total, ends[1:] < total)
            check_rows(fits, "chunks that do not end with their episode", 0, first=begin)
            end = int(ends[-1])
            release()

    def check_gaps(self) -> None:
        check_gaps(self.gaps, self.num_frames, self.features, 0)

    def check_chunks(
        self, file_sizes: npt.NDArray[np.uint64], release: Callable[[], None], block_pages: int
    ) -> None:
        """Every chunk lies inside its record file, and its pages are as its frames allow."""
        step = max(1, block_pages // len(self.schema))
        for first in range(0, len(self.file), step):
            rows = slice(first, first + step)
            self._check_places(rows, file_sizes)
            gaps = self.gaps_of(first, first + step).copy()
            gaps["chunk"] -= np.uint32(first)
            check_pages(
                self.page_length[rows],
                self.largest_frame[rows],
                self.external[rows],
                self.num_frames[rows],
                *(gaps, self.schema, self.features, 0),
                first=first,
            )
            release()

    def _opens(self, row: int) -> bool:
        """Whether a chunk is an episode's first."""
        return int(self.first_chunk[self.episode_of(row)]) == row

    def _check_places(self, rows: slice, sizes: npt.NDArray[np.uint64]) -> None:
        file, offset, first = self.file[rows], self.offset[rows], rows.start
        check_rows(file < len(sizes), "a chunk in no record file", 0, first=first)
        check_rows(offset % ALIGNMENT == 0, "a chunk at a wrong offset", 0, first=first)
        # Compared as they are stored: an offset beyond 2**63 must not turn negative.
        limit = sizes[file]
        inside = (offset >= HEADER_BYTES) & (offset <= limit)
        check_rows(inside, "a chunk outside its record file", 0, first=first)
        stop = offset + chunk_bytes(self.page_length[rows], self.schema).astype(np.uint64)
        check_rows(stop <= limit, "a chunk outside its record file", 0, first=first)


NO_SPLIT = 2**16 - 1


def check_text(key_bytes: int, metadata_bytes: int) -> None:
    """`FormatError` for more text than the episode table holds: each column is one string."""
    for name, length in (("key", key_bytes), ("metadata", metadata_bytes)):
        if length > MAX_INDEX_TEXT:
            raise FormatError(
                f"too much {name} text for one dataset",
                expected=f"at most {MAX_INDEX_TEXT} bytes",
                got=f"{length} bytes",
            )


@dataclass(frozen=True, eq=False)
class Index:
    """All episodes of a dataset and, by group of features, their chunks; E episodes.

    `fps` is 0 where nobody said; `split` is a place in the manifest's list of splits, or
    `NO_SPLIT`. `lags` are of the timestamps, in the order of the schema; `None` without any.
    """

    schema: Schema
    keys: pa.StringArray  # [E]
    uids: npt.NDArray[np.uint8]  # [E, 16]
    metadata: pa.StringArray  # [E], JSON objects
    num_frames: npt.NDArray[np.int64]  # [E]
    fps: npt.NDArray[np.float64]  # [E]
    split: npt.NDArray[np.uint16]  # [E]
    groups: tuple[GroupIndex, ...]
    lags: EpisodeLags | None = None

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Episode number by key."""
        return {key: number for number, key in enumerate(self.keys.to_pylist())}

    def group_of(self, feature: str) -> GroupIndex:
        """The group that a feature lies in."""
        return self.groups[self.schema[feature].group]

    def lengths(self, feature: str) -> npt.NDArray[np.uint64]:
        """Bytes of a feature's pages and of what they refer to, by chunk of its group."""
        group = self.group_of(feature)
        lengths = group.page_length[:, group.schema.position(feature)].astype(np.uint64)
        lengths += group.external
        return lengths

    def largest_frames(self, feature: str, episodes: npt.NDArray[np.int64]) -> int:
        """Bytes of the largest frame of a feature with a variable dimension, in these episodes."""
        group = self.group_of(feature)
        column = [spec.name for spec in group.schema.variable].index(feature)
        by_episode = np.maximum.reduceat(group.largest_frame[:, column], group.first_chunk)
        return int(by_episode[episodes].max(initial=0))

    def key(self, episode: int) -> str:
        """An episode's key."""
        return str(self.keys[episode].as_py())

    def uid(self, episode: int) -> str:
        """An episode's uid, in hexadecimal."""
        return bytes(self.uids[episode]).hex()

    def episode_metadata(self, episode: int) -> dict[str, Any]:
        """An episode's metadata."""
        with located(FormatError, episode=self.key(episode)):
            return parse_metadata(self.metadata[episode].as_py())

    def renamed(self, names: Mapping[str, str]) -> Index:
        """The same episodes, with other names of some features."""
        if not names:
            return self
        groups = (replace(group, schema=group.schema.renamed(names)) for group in self.groups)
        return replace(self, schema=self.schema.renamed(names), groups=tuple(groups))

    def extended(self, more: Index, first_file: int) -> Index:
        """The episodes of this index, then those of `more`, whose files count from `first_file`.

        Raises `FormatError` where both together hold too much text.
        """
        import pyarrow.compute as pc  # here, since it takes long to import

        check_text(
            *(
                sum(pc.sum(pc.binary_length(text)).as_py() for text in texts)
                for texts in ((self.keys, more.keys), (self.metadata, more.metadata))
            )
        )
        return Index(
            schema=self.schema,
            keys=pa.concat_arrays([self.keys, more.keys]),
            uids=np.concatenate([self.uids, more.uids]),
            metadata=pa.concat_arrays([self.metadata, more.metadata]),
            num_frames=np.concatenate([self.num_frames, more.num_frames]),
            fps=np.concatenate([self.fps, more.fps]),
            split=np.concatenate([self.split, more.split]),
            groups=tuple(
                _extended(first, second, first_file)
                for first, second in zip(self.groups, more.groups, strict=True)
            ),
            lags=None if self.lags is None or more.lags is None else self.lags.extended(more.lags),
        )

    def fingerprint(self) -> str:
        """SHA-256 of the content: schema, episodes and pages, however they are cut in files.

        Pages of features that were dropped are not part of it.
        """
        digest = hashlib.sha256()
        for value in (self.schema.to_json(), self.keys.to_pylist(), self.metadata.to_pylist()):
            digest.update(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())
        arrays: list[npt.NDArray[Any]] = [self.num_frames, self.fps]
        for group in self.groups:
            pages = [group.page_length, group.page_crc32c]
            if gone := [i for i, spec in enumerate(group.schema.values()) if spec.is_dropped]:
                pages = [np.delete(table, gone, axis=1) for table in pages]
            arrays += [group.first_frame, group.num_frames, *pages]
        dropped = [place for place, spec in enumerate(self.schema.values()) if spec.is_dropped]
        gaps = [group.gaps for group in self.groups]
        if dropped:
            gaps = [rows[~np.isin(rows["feature"], dropped)] for rows in gaps]
        for array in (*arrays, *gaps):
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(little.reshape(-1).view(np.uint8).data if array.size else b"")
        return digest.hexdigest()

    def encode(self) -> dict[str, pa.Buffer]:
        """The tables as Arrow IPC files of one record batch, by name; see `table_names`."""
        counts = np.stack([group.num_chunks for group in self.groups], axis=1)
        episodes = [
            *(self.keys, self.uids, self.num_frames, self.fps, self.split, self.metadata, counts)
        ]
        gaps = np.concatenate([group.gaps for group in self.groups])
        names = iter(table_names(self.schema))
        tables = {next(names): encode_table(episodes_schema(len(self.groups)), episodes)}
        for group in self.groups:
            chunks = [group.file, group.offset, group.first_frame, group.num_frames]
            chunks += [group.page_length, group.page_crc32c]
            if group.schema.variable:
                chunks.append(group.largest_frame)
            if "external" in chunks_schema(group.schema).names:
                chunks.append(group.external)
            tables[next(names)] = encode_table(chunks_schema(group.schema), chunks)
        tables[next(names)] = encode_table(GAPS, [gaps[name] for name in GAP_ROW.names or ()])
        if self.lags is not None:
            schema = times_schema(self.lags.least.shape[1], int(self.num_frames.max()))
            tables[next(names)] = encode_table(schema, [self.lags.least, self.lags.most])
        return tables

    @classmethod
    def decode(
        cls,
        schema: Schema,
        tables: Mapping[str, pa.Buffer],
        file_sizes: Sequence[int],
        *,
        num_splits: int = 0,
        release: Callable[[], None] | None = None,
        block_pages: int = BLOCK_PAGES,
    ) -> Index:
        """Inverse of `encode`: arrays that view `tables`, checked against each other and the files.

        `release` is called after every `block_pages` pages, when what was read of the tables need
        not stay in memory. Raises `FormatError` that names the row, and the table as its `file`.
        """
        release = release or (lambda: None)
        episodes = decode_table("episodes", tables["episodes"], episodes_schema(schema.num_groups))
        num_frames = episodes["num_frames"].astype(np.int64)
        with located(FormatError, file="episodes"):
            _check_episodes(episodes, num_splits)
        groups = []
        for number, (group, features) in enumerate(
            zip(schema.groups, features_of(schema), strict=True)
        ):
            name, counts = f"chunks{number}", episodes["num_chunks"][:, number].astype(np.int64)
            columns = decode_table(name, tables[name], chunks_schema(group))
            count = len(columns["file"])
            columns.setdefault("largest_frame", np.empty((count, 0), np.uint32))
            columns.setdefault("external", np.broadcast_to(np.uint32(0), count))
            table = GroupIndex(group, features, counts, **columns, gaps=np.empty(0, GAP_ROW))
            with located(FormatError, file=name):
                _check_count(table)
                table.check_frames(num_frames, release, block_pages)
            groups.append(table)
        columns = decode_table("gaps", tables["gaps"], GAPS)
        with located(FormatError, file="gaps"):
            words = sum(len(group.schema) * count_words(group.num_frames) for group in groups)
            gaps = split_gaps(_gap_rows(columns, words), schema, 0)
        groups = [replace(group, gaps=some) for group, some in zip(groups, gaps, strict=True)]
        sizes = np.asarray(file_sizes, np.uint64)
        for number, table in enumerate(groups):
            with located(FormatError, file="gaps"):
                table.check_gaps()
            with located(FormatError, file=f"chunks{number}"):
                table.check_chunks(sizes, release, block_pages)
        lags = None
        if timestamps := with_lags(schema):
            wanted = times_schema(len(timestamps), int(num_frames.max()))
            columns = decode_table("times", tables["times"], wanted)
            with located(FormatError, file="times"):
                lags = _lags_of(columns, len(timestamps), num_frames)
        release()
        return cls(
            schema=schema,
            keys=episodes["key"],
            uids=episodes["uid"],
            metadata=episodes["metadata"],
            num_frames=num_frames,
            fps=episodes["fps"],
            split=episodes["split"],
            groups=tuple(groups),
            lags=lags,
        )


def _lags_of(
    columns: Mapping[str, Any], num_features: int, num_frames: npt.NDArray[np.int64]
) -> EpisodeLags:
    if (count := len(columns["least"])) != len(num_frames):
        raise FormatError(
            "the table of times does not fit the episode table",
            expected=f"{len(num_frames)} rows",
            got=count,
        )
    shape = (count, num_features, -1)
    lags = EpisodeLags(columns["least"].reshape(shape), columns["most"].reshape(shape))
    lags.check(num_frames)
    return lags


def _extended(first: GroupIndex, second: GroupIndex, first_file: int) -> GroupIndex:
    gaps = second.gaps.copy()
    gaps["chunk"] += np.uint32(len(first.file))
    more = replace(second, file=second.file + np.uint32(first_file), gaps=gaps)
    joined = {
        field.name: np.concatenate([getattr(first, field.name), getattr(more, field.name)])
        for field in fields(GroupIndex)
        if field.name not in ("schema", "features")
    }
    return GroupIndex(first.schema, first.features, **joined)


def _check_episodes(columns: Mapping[str, Any], num_splits: int) -> None:
    keys, frames, fps = columns["key"], columns["num_frames"], columns["fps"]
    is_good, num_keys = _checked_keys(keys)
    check_rows(is_good, "a bad episode key", 0)
    if len(keys) == 0 or num_keys != len(keys):
        raise FormatError("no episode, or a key that stands twice", got=len(keys))
    check_rows((frames >= 1) & (frames <= MAX_EPISODE_FRAMES), "an impossible num_frames", 0)
    check_rows((fps >= 0) & np.isfinite(fps), "an impossible fps", 0)
    split = columns["split"]
    check_rows((split < num_splits) | (split == NO_SPLIT), "a split that is not there", 0)
    chunks = columns["num_chunks"]
    fits = ((chunks >= 1) & (chunks <= frames[:, None])).all(axis=1)
    check_rows(fits, "an impossible num_chunks", 0)


def _checked_keys(keys: pa.StringArray) -> tuple[npt.NDArray[np.bool_], int]:
    """Whether each key is allowed, bool[keys], and how many distinct ones there are."""
    if len(keys) <= _FEW_KEYS:
        texts = keys.to_pylist()
        bad = [len(t.encode()) > MAX_KEY_LENGTH or bool(_FORBIDDEN.search(t)) for t in texts]
        return ~np.array(bad, bool), len(set(texts))
    import pyarrow.compute as pc  # here, since it takes long to import

    too_long = pc.greater(pc.binary_length(keys), MAX_KEY_LENGTH)
    found = pc.or_(pc.match_substring_regex(keys, FORBIDDEN_IN_KEY), too_long)
    return ~found.to_numpy(zero_copy_only=False), len(keys.unique())


def _check_count(group: GroupIndex) -> None:
    # Counted before any array of one item a chunk is made from the episodes.
    if (count := int(group.num_chunks.sum())) != len(group.file):
        raise FormatError(
            "the chunk table does not fit the episode table",
            expected=f"{count} rows",
            got=len(group.file),
        )


def _gap_rows(columns: Mapping[str, npt.NDArray[Any]], num_words: int) -> npt.NDArray[Any]:
    """The gap table as `GAP_ROW`: a copy, so it is counted first."""
    if (count := len(columns["chunk"])) > num_words:
        raise FormatError(
            "more rows of validity bitmaps than words",
            expected=f"at most {num_words} rows",
            got=count,
        )
    gaps = np.empty(count, GAP_ROW)
    for name, column in columns.items():
        gaps[name] = column
    return gaps
