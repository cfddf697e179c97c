"""Memory: the sizes of frames, chunks and batches, and the limit of the machine."""

from __future__ import annotations

from torch.utils.data import get_worker_info

from seqrecord.errors import MemoryLimitError
from seqrecord.pipes.arrays import bytes_by_group, groups_of
from seqrecord.pipes.distributed import warn_once
from seqrecord.pipes.selection import Selection
from seqrecord.processes.machine import local_ranks, process_memory, usable_memory
from seqrecord.reading.chunk_sizes import (
    chunk_bytes,
    decoder_bytes,
    max_chunk_bytes,
    open_chunk_bytes,
    overlapping_chunk_bytes,
    resized_bytes,
)
from seqrecord.sampling.memory import FrameSizes
from seqrecord.units import format_size

_TENSOR_BYTES = 1 << 10  # of a tensor beside its values: one for each frame of a variable shape
_MUCH, _TOO_MUCH = 0.5, 0.8  # of the machine's memory


def check_machine(nbytes: int, url: str) -> None:
    """Check the memory of all ranks and workers on this machine, `nbytes` each.

    The processes themselves (Python, torch, the model) take as much as this one at the first call.
    Logs a warning if loaders take over half of the rest. Raises `MemoryLimitError` above 80 %.
    """
    info, ranks = get_worker_info(), local_ranks()
    loaders = ranks * (1 if info is None else info.num_workers)
    processes = loaders + (0 if info is None else ranks)  # a worker's parent has no loader
    own, memory = process_memory(), usable_memory()
    left = max(0, memory - processes * own)
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


def frame_sizes(selection: Selection, batch_size: int) -> FrameSizes:
    """The sizes of a selection's frames, loads and batches, for plans.

    A variable shape counts as its largest decoded frame in the selected episodes.

    With `frame_transform` the plan has one group: its arena contains transformed frames, and each
    load reads chunks of all groups. If this group is in pieces, a cursor keeps its open chunks.
    """
    dataset, episodes, frames = selection.dataset, selection.episodes, selection.frames
    features, tables, groups = dataset.features, dataset.contents.index.groups, groups_of(dataset)
    sizes = [(group, chunk_bytes(group, features)) for group in groups]
    if frames.transform is None:
        staying = bytes_by_group(frames.arrays, features)
        held = [
            nbytes + open_chunk_bytes(grid, [tables[grid.group]], features)
            for nbytes, grid in zip(staying, episodes.groups, strict=True)
        ]
        chunk = whole = max(int(nbytes.max()) for _, nbytes in sizes)
        # codecs may need room for a frame that is in no row yet
        beside = sum(spec.nbytes for spec in frames.stored.values() if not spec.is_fixed)
        # A load reads one group. Where a cursor keeps a chunk open, its decoder is in `held`.
        cut = {grid.group for grid in episodes.groups if grid.whole is not None}
        decoder = max(decoder_bytes(features.values()), default=0)
        others = [spec for spec in features.values() if spec.group not in cut]
        chunk += max(decoder_bytes(others), default=0)
    else:
        grid, frame = episodes.leading_grid, sum(spec.nbytes for spec in frames.arrays.values())
        staying, held = [frame], [frame + open_chunk_bytes(grid, groups, features)]
        if grid.whole is None:
            lead = tables[grid.group]
            chunk = whole = sum(int(overlapping_chunk_bytes(lead, *one).max()) for one in sizes)
        else:
            chunk, whole = (
                sum(max_chunk_bytes(*one, int(some.largest.max())) for one in sizes)
                for some in (grid, grid.whole)
            )
        beside = sum(spec.nbytes for spec in frames.stored.values()) + frame
        decoder = sum(decoder_bytes(features.values()))
        chunk += decoder if episodes.leading_grid.whole is None else 0
    beside += resized_bytes(dataset, selection.clip_set.selected)
    # If all frames stay, no chunk is left open, but a load decodes a whole chunk.
    whole = max(chunk, whole + decoder) + beside
    clip = 0
    for name, spec in selection.made.items():
        tensor = 0 if spec.is_fixed or spec.value != "array" else _TENSOR_BYTES
        clip += (spec.nbytes + tensor) * selection.lengths[name]
    rows, resident = (tuple(max(1, nbytes) for nbytes in some) for some in (held, staying))
    return FrameSizes(rows, chunk + beside, batch_size * max(1, clip), resident, whole)
