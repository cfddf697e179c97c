"""The index: episode, chunk and gap tables, as memory-mapped Arrow IPC files.

Each group of features has a chunk table with one row a chunk, sorted by episode and frame. The
chunks of an episode are consecutive rows.
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
from seqrecord.store.format.arrow import read_batch, to_numpy
from seqrecord.store.format.pages import ALIGNMENT, DIGEST_BYTES, chunk_bytes
from seqrecord.store.format.rows import (
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
    encode_table,
    episodes_schema,
    features_of,
    present_frames,
    split_gaps,
    table_names,
    times_schema,
)
from seqrecord.store.format.text import FORBIDDEN_IN_KEY, MAX_KEY_LENGTH, parse_metadata
from seqrecord.store.format.time_spans import EpisodeTimeSpans, timestamp_features
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import Schema

BLOCK_PAGES = 1 << 18  # checked at a time
_FEATURE_BITS = 16
_FORBIDDEN = re.compile(FORBIDDEN_IN_KEY)
_FEW_KEYS = 1 << 12  # up to here pyarrow.compute is not imported


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """Chunk table of one group; E episodes, C chunks, F features, V of variable shape.

    Chunk i has the frames `[first_frame[i], first_frame[i] + num_frames[i])` of its episode, at
    byte `offset[i]` of the manifest's record file `file[i]`. Rows are sorted by episode and
    frame; the chunks of an episode cover it without gaps. The first and the last chunk of a trimmed
    episode may also have hidden frames, before frame 0 and after the last frame. `largest_frame` is
    the decoded size, in bytes, of each page's largest frame, for features with a variable
    dimension.
    """

    schema: Schema  # of the group
    features: npt.NDArray[np.int64]  # [F], their places in the dataset's schema
    num_chunks: npt.NDArray[np.int64]  # [E]
    first_frame: npt.NDArray[np.int32]  # [C]
    num_frames: npt.NDArray[np.uint32]  # [C]
    file: npt.NDArray[np.uint32]  # [C]
    offset: npt.NDArray[np.uint64]  # [C]
    page_length: npt.NDArray[np.uint32]  # [C, F]
    page_crc32c: npt.NDArray[np.uint32]  # [C, F]
    page_digest: npt.NDArray[np.uint8]  # [C, F, 16], see `page_digest`
    largest_frame: npt.NDArray[np.uint32]  # [C, V]
    external: npt.NDArray[np.uint32]  # [C], bytes of external files referenced by pages
    gaps: npt.NDArray[Any]  # dtype GAP_ROW

    @cached_property
    def first_chunk(self) -> npt.NDArray[np.int64]:
        """First row of each episode, int64 [E]."""
        first_rows: npt.NDArray[np.int64] = np.cumsum(self.num_chunks) - self.num_chunks
        return first_rows

    @cached_property
    def chunk_frames(self) -> npt.NDArray[np.int64]:
        """Frames in a chunk, int64 [E]; 0 if an episode's chunks differ in length.

        The last chunk of an episode may be shorter. For an episode with a single chunk, its length.
        0 for an episode whose first chunk has hidden frames before it.
        """
        lengths = self.num_frames[self.first_chunk].astype(np.int64)
        last_row = self.first_chunk + self.num_chunks - 1
        for begin in range(0, len(self.file), BLOCK_PAGES):
            stop = min(begin + BLOCK_PAGES, len(self.file))
            num_frames = self.num_frames[begin:stop].astype(np.int64)
            episode = self._episodes(begin, stop)
            end = np.zeros(stop - begin, np.bool_)
            end[last_row[episode[0] : episode[-1]] - begin] = True
            end[-1] = last_row[episode[-1]] == stop - 1
            is_irregular = (num_frames > lengths[episode]) | (
                ~end & (num_frames != lengths[episode])
            )
            lengths[episode[is_irregular]] = 0
        lengths[self.first_frame[self.first_chunk] < 0] = 0
        return lengths

    def episode_of(self, row: int) -> int:
        """Return the episode of a chunk."""
        return int(np.searchsorted(self.first_chunk, row, side="right")) - 1

    def rows_of(self, episode: int) -> slice:
        """Return the rows of an episode's chunks."""
        first_row = int(self.first_chunk[episode])
        return slice(first_row, first_row + int(self.num_chunks[episode]))

    def chunks_of(
        self, episode: int, frames: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int64]:
        """Return the rows of the chunks with these frames of an episode, int64 [n]."""
        rows = self.rows_of(episode)
        starts = self.first_frame[rows]
        chunk_rows: npt.NDArray[np.int64] = (
            rows.start - 1 + np.searchsorted(starts, frames, "right")
        )
        return chunk_rows

    def present(self, row: int, feature: int) -> npt.NDArray[np.bool_] | None:
        """Return which frames of a chunk have a feature, bool [frames]; `None` if all have it.

        `feature` is a position in the dataset's schema.
        """
        key = (row << _FEATURE_BITS) + feature
        start, stop = np.searchsorted(self._gap_order, [key, key + 1])
        if start == stop:
            return None
        return present_frames(self.gaps[start:stop], int(self.num_frames[row]))

    def gaps_of(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the gap rows of the chunks `[first, stop)`."""
        bounds = [start << _FEATURE_BITS, stop << _FEATURE_BITS]
        rows: npt.NDArray[Any] = self.gaps[slice(*np.searchsorted(self._gap_order, bounds))]
        return rows

    @cached_property
    def _gap_order(self) -> npt.NDArray[np.int64]:
        chunk_keys: npt.NDArray[np.int64] = self.gaps["chunk"].astype(np.int64) << _FEATURE_BITS
        keys: npt.NDArray[np.int64] = chunk_keys + self.gaps["feature"]
        return keys

    def _episodes(self, begin: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the episodes of the chunks `[begin, stop)`, int64 [stop - begin]."""
        episode = self.episode_of(begin)
        stop_episode = int(np.searchsorted(self.first_chunk, stop))
        starts = np.zeros(stop - begin, np.int64)
        starts[self.first_chunk[episode + 1 : stop_episode] - begin] = 1
        return episode + np.cumsum(starts)

    def check_frames(
        self, num_frames: npt.NDArray[np.int64], release: Callable[[], None], block_pages: int
    ) -> None:
        """Check that each episode's chunks cover it without gaps; `num_frames` is int64 [E].

        Works in blocks of rows, since intermediate arrays are several times as large.
        """
        if (count := int(self.num_chunks.sum())) != len(self.file):  # before any allocation
            raise FormatError(
                "the chunk table does not fit the episode table",
                expected=f"{count} rows",
                got=len(self.file),
            )
        end = 0  # of the preceding chunk
        for begin in range(0, len(self.file), block_pages):
            stop = min(begin + block_pages, len(self.file))
            counts = self.num_frames[begin:stop].astype(np.int64)
            check_lengths(counts, 0, first_row=begin)
            first_frame = self.first_frame[begin:stop].astype(np.int64)
            episode = self._episodes(begin, stop)
            opens = np.diff(episode, prepend=self.episode_of(begin - 1) if begin else -1) > 0
            ends = np.concatenate(([end], first_frame + counts))
            message = "a chunk does not follow the one before it"
            fits = np.where(opens, (first_frame <= 0) & (ends[1:] > 0), first_frame == ends[:-1])
            check_rows(fits, message, 0, first_row=begin)
            # Whether the row behind this block opens an episode, too.
            is_last = stop == len(self.file) or self.episode_of(stop) != episode[-1]
            closes = np.append(opens[1:], is_last)
            total = num_frames[episode]
            fits = np.where(closes, ends[1:] >= total, ends[1:] < total)
            check_rows(fits, "chunks that do not end with their episode", 0, first_row=begin)
            end = int(ends[-1])
            release()

    def check_chunks(
        self, file_sizes: npt.NDArray[np.uint64], release: Callable[[], None], block_pages: int
    ) -> None:
        """Check that chunks are inside their record files and pages fit their number of frames."""
        step = max(1, block_pages // len(self.schema))
        for first_row in range(0, len(self.file), step):
            rows = slice(first_row, first_row + step)
            file, offset = self.file[rows], self.offset[rows]
            check_rows(file < len(file_sizes), "a chunk in no record file", 0, first_row=first_row)
            is_aligned = offset % ALIGNMENT == 0
            check_rows(is_aligned, "a chunk at a wrong offset", 0, first_row=first_row)
            # No conversion to int64: offsets beyond 2**63 would turn negative.
            limit, problem = file_sizes[file], "a chunk outside its record file"
            is_inside = (offset >= HEADER_BYTES) & (offset <= limit)
            check_rows(is_inside, problem, 0, first_row=first_row)
            stop = offset + chunk_bytes(self.page_length[rows], self.schema).astype(np.uint64)
            check_rows(stop <= limit, problem, 0, first_row=first_row)
            gaps = self.gaps_of(first_row, first_row + step).copy()
            gaps["chunk"] -= np.uint32(first_row)
            check_pages(
                self.page_length[rows],
                self.largest_frame[rows],
                self.external[rows],
                self.num_frames[rows],
                *(gaps, self.schema, self.features, 0),
                first_row=first_row,
            )
            release()


NO_SPLIT = 2**16 - 1


def check_text(key_bytes: int, metadata_bytes: int) -> None:
    """Raise `FormatError` if the episode table's text columns would exceed Arrow's limit."""
    for name, length in (("key", key_bytes), ("metadata", metadata_bytes)):
        if length > MAX_INDEX_TEXT:
            raise FormatError(
                f"too much {name} text for one dataset",
                expected=f"at most {MAX_INDEX_TEXT} bytes",
                got=f"{length} bytes",
            )


@dataclass(frozen=True, eq=False)
class Index:
    """All episodes of a dataset and the chunks of each group; E episodes.

    `fps` is 0 if unknown. `split` is a position in the manifest's list of splits, or `NO_SPLIT`.
    `time_spans` has the timestamp features in schema order; `None` without any.
    """

    schema: Schema
    keys: pa.StringArray  # [E]
    uids: npt.NDArray[np.uint8]  # [E, 16]
    metadata: pa.StringArray  # [E], JSON objects
    num_frames: npt.NDArray[np.int64]  # [E]
    fps: npt.NDArray[np.float64]  # [E]
    split: npt.NDArray[np.uint16]  # [E]
    groups: tuple[GroupIndex, ...]
    time_spans: EpisodeTimeSpans | None = None

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Episode number by key."""
        return {key: number for number, key in enumerate(self.keys.to_pylist())}

    def group_of(self, feature: str) -> GroupIndex:
        """Return the group of a feature."""
        return self.groups[self.schema[feature].group]

    def lengths(self, feature: str) -> npt.NDArray[np.uint64]:
        """Return a feature's bytes in each chunk of its group, including references: uint64 [C]."""
        group = self.group_of(feature)
        lengths = group.page_length[:, group.schema.position(feature)].astype(np.uint64)
        lengths += group.external
        return lengths

    def largest_frames(self, feature: str, episodes: npt.NDArray[np.int64]) -> int | None:
        """Return the decoded size, in bytes, of the largest frame in these episodes.

        `None` for a feature without a variable dimension, for which the index has no sizes.
        """
        group = self.group_of(feature)
        columns = [spec.name for spec in group.schema.variable]
        if feature not in columns:
            return None
        nbytes = group.largest_frame[:, columns.index(feature)]
        by_episode = np.maximum.reduceat(nbytes, group.first_chunk)
        return int(by_episode[episodes].max(initial=0))

    def keys_of(self, episodes: npt.NDArray[np.int64]) -> list[str]:
        """Return the keys of episodes."""
        start = int(episodes.min()) if len(episodes) else 0
        keys = self.keys[start : int(episodes.max(initial=0)) + 1].to_pylist()
        return [keys[episode] for episode in (episodes - start).tolist()]

    def key(self, episode: int) -> str:
        """Return an episode's key."""
        return str(self.keys[episode].as_py())

    def split_of(self, episode: int, names: Sequence[str]) -> str | None:
        """Return an episode's split, of these names in the manifest; `None` for no split."""
        number = int(self.split[episode])
        return None if number == NO_SPLIT else names[number]

    def uid(self, episode: int) -> str:
        """Return an episode's uid in hexadecimal."""
        return bytes(self.uids[episode]).hex()

    @cached_property
    def positions_by_uid(self) -> dict[str, int]:
        """The episodes by their uids in hexadecimal."""
        texts, size = self.uids.tobytes().hex(), 2 * self.uids.shape[1]
        return {texts[i : i + size]: i // size for i in range(0, len(texts), size)}

    def episode_metadata(self, episode: int) -> dict[str, Any]:
        """Return an episode's metadata."""
        with located(FormatError, episode=self.key(episode)):
            return parse_metadata(self.metadata[episode].as_py())

    def renamed(self, names: Mapping[str, str]) -> Index:
        """Return the index with some features renamed."""
        if not names:
            return self
        groups = (replace(group, schema=group.schema.renamed(names)) for group in self.groups)
        return replace(self, schema=self.schema.renamed(names), groups=tuple(groups))

    def extended(self, addition: Index, first_file: int) -> Index:
        """Append the episodes of `more`, whose record files are numbered from `first_file`.

        Raises `FormatError` if the joint text exceeds Arrow's limit.
        """
        import pyarrow.compute as pc  # slow import

        check_text(
            *(
                sum(pc.sum(pc.binary_length(text)).as_py() for text in texts)
                for texts in ((self.keys, addition.keys), (self.metadata, addition.metadata))
            )
        )
        arrays = {
            name: np.concatenate([getattr(self, name), getattr(addition, name)])
            for name in ("uids", "num_frames", "fps", "split")
        }
        spans, added_spans = self.time_spans, addition.time_spans
        return Index(
            schema=self.schema,
            keys=pa.concat_arrays([self.keys, addition.keys]),
            metadata=pa.concat_arrays([self.metadata, addition.metadata]),
            groups=tuple(
                _extend_group(base, extension, first_file)
                for base, extension in zip(self.groups, addition.groups, strict=True)
            ),
            time_spans=None
            if spans is None or added_spans is None
            else spans.extended(added_spans),
            **arrays,
        )

    def fingerprint(self) -> str:
        """Compute the SHA-256 of schema, episodes and pages, independent of record file boundaries.

        Pages of dropped features are excluded.
        """
        digest = hashlib.sha256()
        for value in (self.schema.to_json(), self.keys.to_pylist(), self.metadata.to_pylist()):
            digest.update(json.dumps(value, separators=(",", ":"), sort_keys=True).encode())
        arrays: list[npt.NDArray[Any]] = [self.num_frames, self.fps]
        for group in self.groups:
            digests = group.page_digest
            specs = enumerate(group.schema.values())
            if columns := [column for column, spec in specs if spec.is_dropped]:
                digests = np.delete(digests, columns, axis=1)
            arrays += [group.first_frame, group.num_frames, digests]
        dropped = [place for place, spec in enumerate(self.schema.values()) if spec.is_dropped]
        gaps = [group.gaps for group in self.groups]
        if dropped:
            gaps = [rows[~np.isin(rows["feature"], dropped)] for rows in gaps]
        for array in (*arrays, *gaps):
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(little.reshape(-1).view(np.uint8).data if array.size else b"")
        return digest.hexdigest()

    def encode(self) -> dict[str, pa.Buffer]:
        """Encode the tables as Arrow IPC files of one record batch, by name; see `table_names`."""
        names = iter(table_names(self.schema))
        episodes = {
            "key": self.keys,
            "uid": self.uids,
            "metadata": self.metadata,
            "num_frames": self.num_frames,
            "fps": self.fps,
            "split": self.split,
            "num_chunks": np.stack([group.num_chunks for group in self.groups], axis=1),
        }
        tables = {next(names): encode_table(episodes_schema(len(self.groups)), episodes)}
        for group in self.groups:
            tables[next(names)] = encode_table(chunks_schema(group.schema), vars(group))
        gaps = np.concatenate([group.gaps for group in self.groups])
        tables[next(names)] = encode_table(GAPS, {name: gaps[name] for name in GAPS.names})
        if self.time_spans is not None:
            schema = times_schema(self.time_spans.min_growth.shape[1], int(self.num_frames.max()))
            columns = {"least": self.time_spans.min_growth, "most": self.time_spans.max_growth}
            tables[next(names)] = encode_table(schema, columns)
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
        """Inverse of `encode`: arrays that view `tables`, validated against each other and the
        files.

        `release` is called after every `block_pages` pages: mapped memory read so far can be freed.
        Raises `FormatError` with the row, and the table as `file`.
        """
        release = release or (lambda: None)
        schemas, features = schema.groups, features_of(schema)
        with located(FormatError, file="episodes"):
            episodes: dict[str, Any]
            episodes = read_batch(tables["episodes"], episodes_schema(len(schemas)))
            _check_episodes(episodes, num_splits)
        num_frames = episodes["num_frames"].astype(np.int64)
        groups = []
        columns: dict[str, Any]
        for number, group in enumerate(schemas):
            with located(FormatError, file=(name := f"chunks{number}")):
                columns = read_batch(tables[name], chunks_schema(group))
                count, width = len(columns["file"]), len(features[number])
                columns.setdefault("largest_frame", np.empty((count, 0), np.uint32))
                columns.setdefault("external", np.broadcast_to(np.uint32(0), count))
                columns["page_digest"] = columns["page_digest"].reshape(count, width, DIGEST_BYTES)
                table = GroupIndex(
                    *(group, features[number], episodes["num_chunks"][:, number].astype(np.int64)),
                    **columns,
                    gaps=np.empty(0, GAP_ROW),
                )
                table.check_frames(num_frames, release, block_pages)
            groups.append(table)
        with located(FormatError, file="gaps"):
            columns = read_batch(tables["gaps"], GAPS)
            words = sum(len(group.schema) * count_words(group.num_frames) for group in groups)
            gaps = split_gaps(_gap_rows(columns, words), schema, 0)
        groups = [replace(group, gaps=rows) for group, rows in zip(groups, gaps, strict=True)]
        sizes = np.asarray(file_sizes, np.uint64)
        for number, table in enumerate(groups):
            with located(FormatError, file="gaps"):
                check_gaps(table.gaps, table.num_frames, table.features, 0)
            with located(FormatError, file=f"chunks{number}"):
                table.check_chunks(sizes, release, block_pages)
        time_spans = None
        if timestamps := timestamp_features(schema):
            columns_schema = times_schema(len(timestamps), int(num_frames.max()))
            with located(FormatError, file="times"):
                columns = read_batch(tables["times"], columns_schema)
                time_spans = _time_spans_of(columns, len(timestamps), num_frames)
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
            time_spans=time_spans,
        )


def _time_spans_of(
    columns: Mapping[str, Any], num_features: int, num_frames: npt.NDArray[np.int64]
) -> EpisodeTimeSpans:
    if (count := len(columns["least"])) != len(num_frames):
        raise FormatError(
            "the table of times does not fit the episode table",
            expected=f"{len(num_frames)} rows",
            got=count,
        )
    shape = (count, num_features, -1)
    time_spans = EpisodeTimeSpans(columns["least"].reshape(shape), columns["most"].reshape(shape))
    time_spans.check(num_frames)
    return time_spans


def _extend_group(base: GroupIndex, addition: GroupIndex, first_file: int) -> GroupIndex:
    gaps = addition.gaps.copy()
    gaps["chunk"] += np.uint32(len(base.file))
    renumbered = replace(addition, file=addition.file + np.uint32(first_file), gaps=gaps)
    columns = {
        field.name: np.concatenate([getattr(base, field.name), getattr(renumbered, field.name)])
        for field in fields(GroupIndex)
        if field.name not in ("schema", "features")
    }
    return GroupIndex(base.schema, base.features, **columns)


def _check_episodes(columns: Mapping[str, Any], num_splits: int) -> None:
    keys, frames, fps = columns["key"], columns["num_frames"], columns["fps"]
    is_good, num_keys = _checked_keys(keys)
    check_rows(is_good, "a bad episode key", 0)
    if len(keys) == 0 or num_keys != len(keys):
        raise FormatError("no episode, or duplicate keys", got=len(keys))
    check_rows((frames >= 1) & (frames <= MAX_EPISODE_FRAMES), "an impossible num_frames", 0)
    check_rows((fps >= 0) & np.isfinite(fps), "an impossible fps", 0)
    split = columns["split"]
    check_rows((split < num_splits) | (split == NO_SPLIT), "an unknown split", 0)
    chunks = columns["num_chunks"]
    fits = ((chunks >= 1) & (chunks <= frames[:, None])).all(axis=1)
    check_rows(fits, "an impossible num_chunks", 0)


def _checked_keys(keys: pa.StringArray) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which keys are valid, bool [keys], and the number of distinct keys."""
    if len(keys) <= _FEW_KEYS:
        texts = keys.to_pylist()
        bad = [len(t.encode()) > MAX_KEY_LENGTH or bool(_FORBIDDEN.search(t)) for t in texts]
        return ~np.array(bad, bool), len(set(texts))
    import pyarrow.compute as pc  # slow import

    too_long = pc.greater(pc.binary_length(keys), MAX_KEY_LENGTH)
    is_bad = pc.or_(pc.match_substring_regex(keys, FORBIDDEN_IN_KEY), too_long)
    return ~to_numpy(is_bad), len(keys.unique())


def _gap_rows(columns: Mapping[str, npt.NDArray[Any]], num_words: int) -> npt.NDArray[Any]:
    """Copy the gap table to a `GAP_ROW` array, after a check of its length."""
    if (count := len(columns["chunk"])) > num_words:
        raise FormatError(
            "more rows of validity bitmaps than possible",
            expected=f"at most {num_words} rows",
            got=count,
        )
    gaps = np.empty(count, GAP_ROW)
    for name, column in columns.items():
        gaps[name] = column
    return gaps
