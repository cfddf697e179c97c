"""The index of joined datasets: the episodes of one, with chunk tables of all.

Chunks of a companion keep their pages, and are numbered by the frames of the episodes that they
join. Frames without a value are in chunks of no bytes, as frames of a feature that was added later
to other episodes::

    episode                 |           frames 0 to 12          |
    companion's chunks          | c c c c | c c c c | c c |           from frame 2 of the episode
    joined                  | - | c c c c | c c c c | c c |  -  |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.store.format.index import GroupIndex, Index
from seqrecord.store.format.rows import GAP_ROW, HEADER_BYTES, features_of
from seqrecord.store.format.time_spans import EpisodeTimeSpans, timestamp_features
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.tables.grids import IntArray, ragged_arange

_MAX_EMPTY_FRAMES = 1 << 16  # of a chunk without bytes
_MAX_EMPTY_VIDEO = 256


@dataclass(frozen=True, eq=False)
class Partners:
    """For each episode of a joined dataset, its episode in one companion; int64 [E] each.

    Frame t of an episode is frame `start + t` of the companion's `episode`, -1 for none.
    """

    episode: IntArray
    start: IntArray

    @classmethod
    def of_none(cls, count: int) -> Partners:
        """Return the partners of episodes that have none."""
        return cls(np.full(count, -1), np.zeros(count, np.int64))

    def take(self, rows: IntArray) -> Partners:
        """Return the partners of these episodes."""
        return Partners(self.episode[rows], self.start[rows])

    def are_all_of(self, num_frames: IntArray, companion_frames: IntArray) -> bool:
        """Whether each companion's episode has one partner, with the same frames."""
        is_same = len(num_frames) == len(companion_frames) and not self.start.any()
        places = np.arange(len(companion_frames))
        return bool(
            is_same
            and np.array_equal(self.episode, places)
            and np.array_equal(num_frames, companion_frames)
        )


def companion_specs(
    schema: Schema, selected: Schema, num_features: int, num_groups: int
) -> list[FeatureSpec]:
    """Return a companion's features behind `num_features` in `num_groups` of other datasets.

    Features that are not `selected` count as dropped: others may have their names.
    """
    specs = []
    for place, spec in enumerate(schema.values(), num_features):
        name = spec.name if spec.name in selected else f"~{place}"
        specs.append(replace(spec, name=name, group=spec.group + num_groups))
    return specs


def joined_index(
    base: Index, rows: IntArray, schema: Schema, parts: Sequence[tuple[Index, Partners, int]]
) -> Index:
    """Return the episodes `rows` of `base`, with the groups of companions behind its own.

    `parts` are index, partners of these episodes, and number of the first record file of each
    companion; `schema` has the features of all.
    """
    partners = Partners(rows, np.zeros_like(rows))
    num_frames = base.num_frames[rows]
    members = [(base, partners, 0), *parts]
    group_specs = list(zip(schema.groups, features_of(schema), strict=True))
    groups, spans = list[GroupIndex](), list[EpisodeTimeSpans]()
    first_feature = 0
    for index, places, first_file in members:
        specs = group_specs[len(groups) : len(groups) + len(index.groups)]
        for table, (group_schema, features) in zip(index.groups, specs, strict=True):
            moved = _renumbered(table, group_schema, features, first_feature, first_file)
            if not places.are_all_of(num_frames, index.num_frames):
                moved = _placed(moved, index.num_frames, places, num_frames)
            groups.append(moved)
        kept = _kept_clocks(index.schema, schema, first_feature)
        if index.time_spans is not None and kept:
            taken = index.time_spans.take(_whole_partners(places, num_frames, index))
            spans.append(taken.of_features(kept))
        first_feature += len(index.schema)
    time_spans = spans[0] if spans else None
    for addition in spans[1:]:
        assert time_spans is not None
        time_spans = time_spans.beside(addition)
    return Index(
        schema=schema,
        keys=base.keys.take(rows) if len(rows) < len(base.num_frames) else base.keys,
        uids=base.uids[rows],
        metadata=base.metadata.take(rows) if len(rows) < len(base.num_frames) else base.metadata,
        num_frames=num_frames,
        fps=base.fps[rows],
        split=base.split[rows],
        groups=tuple(groups),
        time_spans=time_spans,
    )


def _kept_clocks(member: Schema, joined: Schema, first_feature: int) -> list[int]:
    """Return which timestamp features of a member, with this first place, are in the joined schema.

    Clocks that are not selected count as dropped there.
    """
    kept = {joined.position(name) for name in timestamp_features(joined)}
    clocks = (member.position(name) for name in timestamp_features(member))
    return [number for number, place in enumerate(clocks) if first_feature + place in kept]


def _whole_partners(places: Partners, num_frames: IntArray, index: Index) -> IntArray:
    """Return the companion's episodes that cover all frames, -1 for others: int64 [E].

    Time spans of more frames bound those of fewer, but a frame without a timestamp has no bounds.
    """
    stop = places.start + num_frames
    covers = (places.start >= 0) & (stop <= index.num_frames[places.episode])
    whole: IntArray = np.where((places.episode >= 0) & covers, places.episode, -1)
    return whole


def _renumbered(
    table: GroupIndex,
    schema: Schema,
    features: IntArray,
    first_feature: int,
    first_file: int,
) -> GroupIndex:
    if not first_feature:
        return table
    gaps = table.gaps.copy()
    gaps["feature"] += np.uint16(first_feature)
    return replace(
        table,
        schema=schema,
        features=features,
        file=table.file + np.uint32(first_file),
        gaps=gaps,
    )


def _placed(
    table: GroupIndex, table_frames: IntArray, partners: Partners, num_frames: IntArray
) -> GroupIndex:
    """Return the chunks of episodes' partners, and chunks without bytes where they end.

    `table_frames` are the lengths of the table's episodes, `num_frames` those of the result's.
    """
    has_partner = partners.episode >= 0
    episode = np.where(has_partner, partners.episode, 0)
    owner, place = ragged_arange(np.where(has_partner, table.num_chunks[episode], 0))
    source = table.first_chunk[episode][owner] + place
    first = table.first_frame[source] - partners.start[owner]
    count = table.num_frames[source].astype(np.int64)
    is_used = (first < num_frames[owner]) & (first + count > 0)
    # A companion's own trims hide frames of its first and last chunk.
    low = np.where(has_partner, -partners.start, num_frames)
    high = np.where(has_partner, table_frames[episode] - partners.start, num_frames)
    low, high = np.clip(low, 0, num_frames), np.clip(high, 0, num_frames)
    high = np.maximum(low, high)
    everyone = np.arange(len(num_frames))
    is_video = any(spec.is_video for spec in table.schema.values())
    limit = _MAX_EMPTY_VIDEO if is_video else _MAX_EMPTY_FRAMES
    before = _pieces(everyone, np.zeros_like(low), low, limit)
    after = _pieces(everyone, high, num_frames, limit)
    owner, source = owner[is_used], source[is_used]
    empty = np.full(len(before[0]) + len(after[0]), -1)
    owner = np.concatenate([before[0], owner, after[0]])
    first = np.concatenate([before[1], first[is_used], after[1]])
    count = np.concatenate([before[2], count[is_used], after[2]])
    source = np.concatenate([empty[: len(before[0])], source, empty[len(before[0]) :]])
    order = np.lexsort((first, owner))
    owner, first, count, source = (column[order] for column in (owner, first, count, source))
    is_empty = source < 0

    def column(values: npt.NDArray[Any], empty_value: int = 0) -> npt.NDArray[Any]:
        if not len(values):
            return np.full((len(source), *values.shape[1:]), empty_value, values.dtype)
        taken: npt.NDArray[Any] = values[source]
        taken[is_empty] = empty_value
        return taken

    return GroupIndex(
        schema=table.schema,
        features=table.features,
        num_chunks=np.bincount(owner, minlength=len(num_frames)).astype(np.int64),
        first_frame=first.astype(np.int32),
        num_frames=count.astype(np.uint32),
        file=column(table.file, int(table.file[0])),
        offset=column(table.offset, HEADER_BYTES),
        page_length=column(table.page_length),
        page_crc32c=column(table.page_crc32c),
        page_digest=column(table.page_digest),
        largest_frame=column(table.largest_frame),
        external=column(table.external),
        gaps=_gaps_of(table, source, count),
    )


def _pieces(
    owner: IntArray, start: IntArray, stop: IntArray, limit: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Cut the frames `[start, stop)` of episodes into pieces: episode, first frame, frames."""
    place, piece = ragged_arange(-(-(stop - start) // limit))
    first = start[place] + piece * limit
    return owner[place], first, np.minimum(limit, stop[place] - first)


def _gaps_of(table: GroupIndex, source: IntArray, count: IntArray) -> npt.NDArray[Any]:
    """Return the gap rows of chunks, taken from the rows `source`, -1 for no bytes; `count` are
    their frames.
    """
    chunk = table.gaps["chunk"].astype(np.int64)
    begin, stop = np.searchsorted(chunk, source), np.searchsorted(chunk, source, "right")
    owner, place = ragged_arange(stop - begin)
    kept = table.gaps[begin[owner] + place]
    kept["chunk"] = owner
    empty = np.flatnonzero(source < 0)
    owner, word = ragged_arange(-(-count[empty] // 64))
    missing = np.zeros(len(owner) * len(table.features), GAP_ROW)
    missing["chunk"] = np.repeat(empty[owner], len(table.features))
    missing["word"] = np.repeat(word, len(table.features))
    missing["feature"] = np.tile(table.features, len(owner))
    gaps = np.concatenate([kept, missing])
    return gaps[np.lexsort((gaps["word"], gaps["feature"], gaps["chunk"]))]
