"""Sizes of a view's frames, chunks and batches; frames that may stay; the machine's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.engine.arena import FORMS
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.frame_arrays import bytes_by_group
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.memory import FrameSizes
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.processes.machine import local_ranks, process_memory, usable_memory
from seqrecord.store.reading.chunk_sizes import (
    chunk_bytes,
    decoder_bytes,
    is_decoded,
    max_chunk_bytes,
    open_chunk_bytes,
    overlapping_chunk_bytes,
    resized_bytes,
)
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.units import format_size

_MUCH, _TOO_MUCH = 0.5, 0.8  # of the machine's memory


class _Machine(NamedTuple):
    """This machine's memory, in bytes: all, of each process, and what all processes leave.

    The processes themselves (Python, torch, the model) take as much as this one at the first call.
    """

    loaders: int
    processes: int
    memory: int
    own: int
    left: int

    @classmethod
    def of_now(cls) -> _Machine:
        """The memory for the ranks and workers on this machine."""
        info, ranks = get_worker_info(), local_ranks()
        loaders = ranks * (1 if info is None else info.num_workers)
        processes = loaders + (0 if info is None else ranks)  # a worker's parent has no loader
        own, memory = process_memory(), usable_memory()
        return cls(loaders, processes, memory, own, max(0, memory - processes * own))


def spare_memory(nbytes: int, part: float = 1.0) -> int:
    """The bytes that a loader of `nbytes` may use beside them: within half of the machine's memory,
    of which it has a `part`.
    """
    machine = _Machine.of_now()
    return max(0, int(part * _MUCH * machine.left / machine.loaders) - nbytes)


def check_machine(nbytes: int, url: str) -> None:
    """Check the memory of all ranks and workers on this machine, `nbytes` each.

    Logs a warning if loaders take over half of the memory that processes leave. Raises
    `MemoryLimitError` above 80 %.
    """
    loaders, processes, memory, own, left = _Machine.of_now()
    if loaders * nbytes <= _MUCH * left:
        return
    each = f"{format_size(nbytes)} for each loader here, {loaders} in all"
    free = f"{format_size(memory)} without {processes} x {format_size(own)} of the processes"
    most = int(_TOO_MUCH * left / loaders)
    if loaders * nbytes > _TOO_MUCH * left:
        raise MemoryLimitError(
            "frames, batches and reads would take too much of this machine's memory",
            file=url,
            expected=f"at most {_TOO_MUCH:.0%} of {free}: memory_limit={most} "
            f"({format_size(most)}), fewer workers or smaller batches",
            got=each,
        )
    warn_once(
        f"{url}: frames, batches and reads take {loaders * nbytes / left:.0%} of this machine's "
        f"memory, {free}: {each}; a smaller memory_limit or fewer workers take less"
    )


def frame_sizes(view: View, batch_size: int) -> FrameSizes:
    """The sizes of a view's frames, loads and batches, for plans.

    A variable shape counts as its largest decoded frame in the selected episodes.

    With `frame_transform` the plan has one group: its arena contains transformed frames, and each
    load reads chunks of all groups. If this group is in pieces, a cursor keeps its open chunks.
    """
    transform = view.transform
    loads = _loads_of_groups(view) if transform is None else _loads_of_results(view)
    beside = loads.beside + resized_bytes(view.dataset, view.episode_rows)
    # If all frames stay, no chunk is left open, but a load decodes a whole chunk.
    whole = max(loads.chunk, loads.whole_chunk) + beside
    clip = 0
    for name, spec in view.batch_arrays.items():
        item = FORMS[spec.value_kind].item_nbytes
        clip += (spec.nbytes + item) * view.lengths[name]
    rows = tuple(np.maximum(loads.frames, 1).tolist())
    staying = tuple(np.maximum(loads.staying, 1).tolist())
    return FrameSizes(rows, loads.chunk + beside, batch_size * max(1, clip), staying, whole)


class _LoadSizes(NamedTuple):
    """Sizes of frames and loads in bytes.

    Attributes:
        staying: a frame of each group.
        frames: a frame of each group, and its cursor's open chunk.
        chunk: the largest load, with its decoder.
        whole_chunk: the largest load of whole chunks, with its decoder.
        beside: frames of a load that are in no row yet.
    """

    staying: Sequence[int]
    frames: Sequence[int]
    chunk: int
    whole_chunk: int
    beside: int


def _loads_of_groups(view: View) -> _LoadSizes:
    """The sizes of loads that each read one group."""
    features, tables = view.dataset.features, view.dataset.contents.index.groups
    staying, frames, largest = bytes_by_group(view.arrays, features), list[int](), 0
    closed = [*features.values()]
    for frame, grid in zip(staying, view.episodes.groups, strict=True):
        table, opened = tables[grid.group], 0
        largest = max(largest, int(chunk_bytes(table, features).max()))
        if grid.stored_grid is not None:  # in pieces: a cursor's chunk and its decoder stay open
            opened = open_chunk_bytes(grid, [table], features)
            closed = [spec for spec in closed if spec.group != grid.group]
        frames.append(frame + opened)
    stored = view.stored_arrays.values()
    return _LoadSizes(
        staying,
        frames,
        largest + max(decoder_bytes(closed), default=0),
        largest + max(decoder_bytes(features.values()), default=0),
        # Codecs may need room for a frame.
        sum(s.nbytes for s in stored if not FORMS[s.value_kind].is_stacked),
    )


def _loads_of_results(view: View) -> _LoadSizes:
    """The sizes of loads for a frame transform, which read all groups."""
    features, grid = view.dataset.features, view.episodes.leading_grid
    tables = view.dataset.contents.index.groups
    groups = [tables[number] for number in sorted({spec.group for spec in features.values()})]
    sizes = [(group, chunk_bytes(group, features)) for group in groups]
    frame = sum(spec.nbytes for spec in view.arrays.values())
    beside = frame + sum(spec.nbytes for spec in view.stored_arrays.values())
    decoder = sum(decoder_bytes(features.values()))
    if grid.stored_grid is None:
        lead = tables[grid.group]
        chunk = sum(int(overlapping_chunk_bytes(lead, *one).max()) for one in sizes) + decoder
        return _LoadSizes([frame], [frame], chunk, chunk, beside)
    opened = open_chunk_bytes(grid, groups, features)
    chunk, whole = (
        sum(max_chunk_bytes(*one, int(some.max_chunk_frames.max())) for one in sizes)
        for some in (grid, grid.stored_grid)
    )
    return _LoadSizes([frame], [frame + opened], chunk, whole + decoder, beside)


SMALL = 64 << 10  # bytes of a frame: to copy a larger one costs more than to read it alone


def frames_may_stay(view: View) -> tuple[bool, bool]:
    """Whether all frames may stay in memory: if only small frames may, and if decoded ones may too.

    Decoded frames may stay if their shapes are fixed and decoding or transforming costs more than
    copying. Large raw frames do not stay: reading them again is a copy. Texts stay if the other
    features do.
    """
    if view.excerpts is not None:  # whose places are no frames of chunks
        return False, False
    features, transform = view.dataset.features, view.transform
    have_rows, are_small, are_costly = True, transform is None, transform is not None
    for array in view.arrays.values():
        have_rows &= FORMS[array.value_kind].fits_rows
    for name, spec in features.items() if transform is None else ():
        have_rows &= FORMS[spec.value_kind].fits_rows
        if not FORMS[spec.value_kind].stays_with_others:
            are_small = are_small and _is_small(view.dataset, name)
            are_costly |= is_decoded(spec)
    return are_small, are_small or (have_rows and are_costly and view.is_deterministic)


def features_in_memory(dataset: Dataset) -> tuple[list[str], list[str]]:
    """The features whose frames may stay in memory individually: small ones, and others.

    Small features are raw, complete and on a local disk. The others are encoded, complete, and of
    fixed shape or texts.
    """
    reader, features, index = dataset.contents.chunks, dataset.features, dataset.contents.index
    small = [
        name
        for name, spec in features.items()
        if reader.is_local and not is_decoded(spec) and _is_small(dataset, name)
        if name in reader.raw[spec.group].specs
    ]
    decoded = [
        name
        for name, spec in features.items()
        if FORMS[spec.value_kind].fits_rows
        and is_decoded(spec)
        and not len(index.group_of(name).gaps)
    ]
    return small, decoded


def resident_features(view: View, *, stay: bool) -> dict[str, list[str]]:
    """Names of features whose frames `stay` in memory, and of features decoded in every epoch."""
    features = view.dataset.features
    decoded = [n for n, spec in features.items() if view.transform is not None or is_decoded(spec)]
    return {
        "features_resident": list(features) if stay else [],
        "features_redecoded": [] if stay else decoded,
    }


def _is_small(dataset: Dataset, feature: str) -> bool:
    """Whether frames are small and complete, and each can be read alone."""
    spec, gaps = dataset.features[feature], dataset.contents.index.group_of(feature).gaps
    nbytes = spec.value_kind.constant_nbytes(spec)
    is_alone = not dataset.contents.chunks.kinds[feature].decodes_in_order
    return nbytes is not None and nbytes <= SMALL and is_alone and not len(gaps)


def can_stay(spec: FeatureSpec) -> bool:
    """Whether small frames of a feature can have a row each, and be decoded alone."""
    return FORMS[spec.value_kind].fits_rows and not page_kind(spec).decodes_in_order
