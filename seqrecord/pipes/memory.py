"""Memory: how many bytes frames, chunks and batches take, and what gets which part of a limit.

All that an epoch gets is settled here, before it begins: for one dataset by `settle`, for the
sources of a mix by `share_out` first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.clips.grids import ChunkGrid, frame_keys
from seqrecord.clips.tables import IntArray
from seqrecord.errors import MemoryLimitError
from seqrecord.format.index import GroupIndex
from seqrecord.format.pages import ALIGNMENT
from seqrecord.pipes.arrays import bytes_by_group, groups_of
from seqrecord.pipes.distributed import say_once
from seqrecord.pipes.selection import Selection
from seqrecord.processes.machine import local_ranks, usable_memory
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.frames import ArraySpec, clip_nbytes
from seqrecord.sampling import Plan
from seqrecord.sampling.memory import CONSUMER, PREFETCH, Demand, Fit, FrameSizes, Memory
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.units import format_size, parse_size

_TENSOR_BYTES = 1 << 10  # of a tensor beside what it holds: one for each frame of a variable shape
_MORE = (8, 4)  # batches of a mix that are filled or wait, where they are this part of the memory:
_SHARE = 16  # small ones, so that sources seldom wait for each other
_MOST_BYTES = 1 << 60  # no machine has as many, and floats have them exactly
_MOST_TOGETHER = 32  # single clips that are made at once,
_MOST_BYTES_TOGETHER = 1 << 20  # … which are small
_SMALL = 64 << 10  # bytes of a frame: to copy a larger one costs more than to read it alone
_MUCH, _TOO_MUCH = 0.5, 0.8  # of the machine's memory
_DECODER_FRAMES = 16  # that a decoder holds: those that others refer to, and those that wait


def settle(
    fit: Fit,
    plan: Plan,
    selection: Selection,
    *,
    on_device: bool,
    of_mix: bool = False,
    in_worker: bool,
) -> Memory:
    """What an epoch gets of its limit: rows of stores, batches in flight and loads.

    The batches `of_mix` are the mix's.
    """
    on_host = not on_device and not of_mix
    is_fixed = all(spec.is_fixed for spec in selection.frames.arrays.values())
    frames = [group.max_resident_frames for group in plan.groups]
    memory = fit.memory(frames, fixed=is_fixed and on_host)
    if in_worker and selection.dataset.contents.chunks.is_local:
        # The DataLoader asks for batches ahead by itself; memory for more is slow to find.
        memory = replace(memory, prefetch=1)
    made = selection.made
    are_alike = all(spec.is_fixed and spec.value == "array" for spec in made.values())
    if fit.settings.batch_size is None and on_host and are_alike:
        clip = max(1, clip_nbytes(made, selection.lengths))
        most = min(_MOST_TOGETHER, _MOST_BYTES_TOGETHER // clip)
        memory = replace(memory, together=fit.clips_at_once(memory, most))
    return memory


def frames_in_memory(selection: Selection, *, only_small: bool) -> int:
    """How many frames may stay in memory once they were loaded, for other cursors and epochs: all
    of the selected episodes, or none.

    Small frames may stay; and unless `only_small`, frames of fixed shapes that cost more to decode
    or transform than to copy. Large raw frames do not stay: reading them again is a copy. Texts
    stay if the other features do.
    """
    if selection.clip_set.excerpts is not None:  # whose places are no frames of chunks
        return 0
    features, transform = selection.dataset.features, selection.frames.transform
    arrays = [name for name, spec in features.items() if spec.value == "array"]
    stays = transform is None and all(_is_small(selection.dataset, name) for name in arrays)
    if not (stays or only_small) and all(map(_has_rows, selection.frames.arrays.values())):
        if transform is not None:
            stays = selection.frames.is_deterministic
        else:
            stays = all(map(_has_rows, features.values()))
            stays &= not all(features[name].is_raw for name in arrays)
    num_frames: IntArray = selection.episodes.num_frames[selection.clip_set.selected]
    return int(num_frames.sum()) if stays else 0


def is_small(dataset: Dataset, feature: str) -> bool:
    """Whether a feature's frames are raw, small, all there, and on a local disk: they may stay."""
    reader, group = dataset.contents.chunks, dataset.features[feature].group
    is_raw = feature in reader.raw[group].specs and dataset.features[feature].is_raw
    return reader.is_local and is_raw and _is_small(dataset, feature)


def is_decoded(dataset: Dataset, feature: str) -> bool:
    """Whether a feature's frames are encoded, texts or of a fixed shape, and all there: they may
    stay."""
    spec, gaps = dataset.features[feature], dataset.contents.index.group_of(feature).gaps
    return _has_rows(spec) and not spec.is_raw and not len(gaps)


def check_machine(nbytes: int, url: str) -> None:
    """Where all ranks of this machine and their workers take so many bytes each: log a warning if
    that is over half of its memory, and raise `MemoryLimitError` if it is over 80 %."""
    info = get_worker_info()
    processes = local_ranks() * (1 if info is None else info.num_workers)
    memory = usable_memory()
    share = processes * nbytes / memory
    if share <= _MUCH:
        return
    each = f"{format_size(nbytes)} for each process here, {processes} in all"
    most = int(_TOO_MUCH * memory / processes)
    if share > _TOO_MUCH:
        raise MemoryLimitError(
            "frames, batches and reads would take too much of this machine's memory",
            file=url,
            expected=f"at most {_TOO_MUCH:.0%} of {format_size(memory)}: memory_limit={most} "
            f"({format_size(most)}), fewer workers or smaller batches",
            got=each,
        )
    say_once(
        f"{url}: frames, batches and reads take {share:.0%} of this machine's memory: {each}; "
        "a smaller memory_limit or fewer workers take less"
    )


def share_out(
    memory_limit: int | str, batch: int, demands: Mapping[str, Demand], weights: Mapping[str, float]
) -> tuple[int, dict[str, int]]:
    """How many batches of a mix may be filled or wait, and the bytes of each source.

    `batch` are those of one batch; what batches leave is divided by weight. Raises
    `MemoryLimitError` where not all that sources need fits.
    """
    least = {name: demand.least_limit for name, demand in demands.items()}
    limit, needed = min(parse_size(memory_limit), _MOST_BYTES), sum(least.values())

    def fits(prefetch: int) -> bool:
        batches = (prefetch + CONSUMER) * batch
        are_few = prefetch <= PREFETCH or batches <= limit // _SHARE
        return are_few and needed + batches <= limit

    prefetch = next(filter(fits, (*_MORE, *range(PREFETCH, 1, -1))), 1)
    return prefetch, divide_memory(least, weights, (prefetch + CONSUMER) * batch, limit)


def divide_memory(
    least: Mapping[str, int], demands: Mapping[str, float], batches: int, limit: int
) -> dict[str, int]:
    """The bytes of each source: by demand, and at least what it needs.

    `batches` are bytes that belong to none. Raises `MemoryLimitError` where not all of them fit.
    """
    room = limit - batches
    if room < sum(least.values()):
        raise MemoryLimitError(
            "memory_limit is too small for this mix",
            expected=f"at least {sum(least.values()) + batches} bytes: {batches} of batches, and "
            + ", ".join(f"{nbytes} of {name}" for name, nbytes in least.items()),
            got=f"{limit} bytes",
        )
    found: dict[str, int] = {}
    while True:
        rest = {name: demand for name, demand in demands.items() if name not in found}
        left = room - sum(found.values())
        shares = {name: int(left * demand / sum(rest.values())) for name, demand in rest.items()}
        small = [name for name, nbytes in shares.items() if nbytes < least[name]]
        if not small:
            return {**found, **shares}
        found.update((name, least[name]) for name in small)


def frame_sizes(selection: Selection, batch_size: int) -> FrameSizes:
    """The sizes that plans of a selection have, with batches of so many clips.

    A variable shape counts as its largest frame of the selected episodes, decoded.

    With `frame_transform` the plan has one group, whose arena has what is made of frames, and each
    load reads chunks of all groups. Where that group is in pieces, a cursor keeps those open of
    which it has yet to need more.
    """
    dataset, episodes, stored = (
        selection.dataset,
        selection.episodes,
        selection.frames.stored.values(),
    )
    features, tables, groups = dataset.features, dataset.contents.index.groups, groups_of(dataset)
    sizes = [(group, chunk_bytes(group, features)) for group in groups]
    # Where all frames stay no chunk is left open, but a load decodes all of a chunk.
    videos = [spec.stored for spec in features.values() if spec.is_video]
    decoders = _DECODER_FRAMES * sum(spec.nbytes for spec in videos)
    staying, whole = tuple[int, ...](), 0
    if selection.frames.transform is not None:
        frame, grid = sum(spec.nbytes for spec in selection.frames.arrays.values()), episodes.lead
        if grid.whole is None:
            frames = [frame]
            each = [int(bytes_beside(tables[grid.group], *one).max()) for one in sizes]
        else:
            frames, most = [frame + open_chunk_bytes(grid, groups, features)], grid.largest.max()
            each = [bytes_of_run(*one, int(most)) for one in sizes]
            most = grid.whole.largest.max()
            whole = sum(bytes_of_run(*one, int(most)) for one in sizes)
        beside, staying = sum(spec.nbytes for spec in stored) + frame, (frame,)
        beside += _resized_bytes(selection)
        chunk, whole = sum(each) + beside, max(sum(each), whole) + beside + decoders
    else:  # codecs may need room for a frame that is in no row yet
        frames = bytes_by_group(selection.frames.arrays, features)
        staying = tuple(frames)
        for place, grid in enumerate(episodes.groups):
            frames[place] += open_chunk_bytes(grid, [tables[grid.group]], features)
        chunk = max(int(nbytes.max()) for _, nbytes in sizes)
        chunk += sum(spec.nbytes for spec in stored if not spec.is_fixed)
        chunk += _resized_bytes(selection)
        whole = chunk + decoders
    lengths = selection.lengths
    clip = sum((spec.nbytes + _beside(spec)) * lengths[n] for n, spec in selection.made.items())
    held, all_held = (tuple(max(1, nbytes) for nbytes in each) for each in (frames, staying))
    return FrameSizes(held, chunk, batch_size * max(1, clip), all_held, whole)


def chunk_bytes(group: GroupIndex, features: Collection[str]) -> IntArray:
    """Bytes of the pages that some features have in each chunk of a group; int64[chunks].

    Packets that a page refers to count twice: as they are read, and as they are then put together.
    """
    columns = [group.schema.position(name) for name in group.schema if name in features]
    padded = group.page_length[:, columns].astype("i8") + (ALIGNMENT - 1)
    total: IntArray = (padded // ALIGNMENT * ALIGNMENT).sum(axis=1)
    times = 2 if any(spec.is_video for spec in group.schema.values()) else 1
    total += times * group.external * bool(columns)
    return total


def bytes_beside(lead: GroupIndex, other: GroupIndex, nbytes: IntArray) -> IntArray:
    """Bytes of those chunks of another group that have frames of each chunk of `lead`.

    `nbytes` are bytes of the other group's chunks. Returns int64[chunks of `lead`].
    """
    total = np.append(0, np.cumsum(nbytes))
    keys = _keys(other)
    first = _keys(lead)
    start = np.searchsorted(keys, first, side="right") - 1
    stop = np.searchsorted(keys, first + lead.num_frames, side="left")
    beside: IntArray = total[stop] - total[start]
    return beside


def bytes_of_run(group: GroupIndex, nbytes: IntArray, num_frames: int) -> int:
    """The most bytes of those chunks of a group that have some of `num_frames` frames of an
    episode, which follow each other.

    `nbytes` are bytes of the group's chunks. Most chunks are touched by frames that begin with the
    last one of a chunk.
    """
    total = np.append(0, np.cumsum(nbytes))
    keys = _keys(group)
    last = keys + group.num_frames - 1
    stop = np.searchsorted(keys, last + num_frames, side="left")
    return int((total[stop] - total[:-1]).max(initial=0))


def open_chunk_bytes(grid: ChunkGrid, groups: Sequence[GroupIndex], features: Schema) -> int:
    """What a cursor keeps open of some groups where its own one is in pieces, in bytes for each
    frame of a piece: the largest pages as they are stored, and the frames of their decoders."""
    if grid.whole is None:
        return 0
    kept = 0
    for group in groups:
        videos = [spec for name, spec in group.schema.items() if name in features and spec.is_video]
        kept += sum(_DECODER_FRAMES * spec.nbytes for spec in videos)
        kept += int(chunk_bytes(group, features).max(initial=0))
    return -(-kept // max(1, int(grid.largest.max(initial=1))))


def _resized_bytes(selection: Selection) -> int:
    """What a load needs for a stored frame of each feature that is resized after it is decoded."""
    contents, episodes, nbytes = selection.dataset.contents, selection.clip_set.selected, 0
    for name, spec in contents.features.items():
        if spec.stored_shape is not None and not spec.is_video:
            stored, index = spec.stored, contents.index
            is_fixed = stored.is_fixed
            nbytes += stored.nbytes if is_fixed else index.largest_frames(name, episodes)
    return nbytes


def _is_small(dataset: Dataset, feature: str) -> bool:
    """Whether frames are small, and all there."""
    spec, gaps = dataset.features[feature], dataset.contents.index.group_of(feature).gaps
    return spec.is_fixed and spec.nbytes <= _SMALL and not spec.is_video and not len(gaps)


def _has_rows(spec: ArraySpec | FeatureSpec) -> bool:
    """Whether a row can keep a frame for all epochs: of a fixed shape, or a text."""
    return spec.is_fixed or spec.value != "array"


def _beside(spec: ArraySpec) -> int:
    """Bytes that a frame takes in a batch beside what it holds."""
    return _TENSOR_BYTES if not spec.is_fixed and spec.value == "array" else 0


def _keys(group: GroupIndex) -> IntArray:
    """A number for each chunk; it ascends with episodes, and with first frames in them."""
    episode = np.repeat(np.arange(len(group.num_chunks)), group.num_chunks)
    return frame_keys(episode, group.first_frame.astype(np.int64))
