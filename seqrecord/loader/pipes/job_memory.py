"""The memory of a run, settled before it begins: of arenas, batches, loads and remote chunks; and
notices of the work that more memory would save.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from seqrecord.loader.engine.arena import FORMS
from seqrecord.loader.engine.frame_readers import frame_reader, is_costly
from seqrecord.loader.engine.frame_rows import FrameRows
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.frames.array_specs import clip_nbytes
from seqrecord.loader.pipes.frame_arrays import bytes_by_group
from seqrecord.loader.pipes.machine_memory import check_machine, spare_memory
from seqrecord.loader.pipes.needed_pieces import needed_in
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.resident_frames import SMALL, can_stay
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_order import ViewOrder, plan_clips
from seqrecord.loader.reading.chunk_store import ChunkStore, Pieces
from seqrecord.loader.reading.mapped_frames import mapped_frames
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.frame_sizes import MOST_CLIPS, Memory, MemoryDivision
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.settings_choice import EpochMemory
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import shown_place
from seqrecord.store.units import format_size

_logger = logging.getLogger("seqrecord")

_MOST_TOGETHER = 32  # single clips that are made at once,
_MOST_BYTES_TOGETHER = 1 << 20  # … which are small


class SettledMemory(NamedTuple):
    """The memory of a run.

    Attributes:
        memory: arena rows, batches in flight and loads.
        nbytes: the greatest size of these.
        rows: the rows of frames that stay in memory, by group; none if frames are freed.
        store_bytes: memory for a store of remote chunks, beside `nbytes`.
        pieces: the bytes that the plan needs from that store.
        small_rows: rows of resident small frames, by group, in the memory that mapped frames do
            not need; see `_small_rows`.
    """

    memory: Memory
    nbytes: int
    rows: Mapping[int, FrameRows] = MappingProxyType({})
    store_bytes: int = 0
    pieces: Pieces | None = None
    small_rows: Mapping[int, FrameRows] = MappingProxyType({})


def settle(
    order: ViewOrder,
    fitted: EpochMemory,
    plan: EpochPlan,
    *,
    on_device: bool,
    in_worker: bool,
) -> SettledMemory:
    """Settle the `fitted` memory of a plan's run. Of local files, it is that of all plans of the
    shard.

    Raises `MemoryLimitError` for more than this machine has; a mix checks its sources together.
    """
    memory = _arenas(order, fitted, on_device=on_device, in_worker=in_worker)
    settled = SettledMemory(memory, fitted.division.nbytes(memory))
    if fitted.stays:
        settled = settled._replace(
            rows=order.staying_rows(plan.shard, plan.segments, fitted.settings)
        )
    elif not on_device and mapped_frames(order.view.dataset.contents):
        settled = settled._replace(small_rows=_small_rows(order.view, plan, memory))
    if isinstance(order.view.dataset.contents.storage, ChunkStore):
        settled = _with_store(order, fitted.division, plan, settled)
    if not on_device and order.limit_in is None:
        check_machine(settled.nbytes, order.view.dataset.url)
    return settled


def _arenas(order: ViewOrder, fitted: EpochMemory, *, on_device: bool, in_worker: bool) -> Memory:
    """Arena rows, batches in flight and loads."""
    view, made = order.view, order.view.batch_arrays
    memory = fitted.division.memory
    if in_worker and view.dataset.contents.chunks.is_local:
        # The DataLoader asks for batches ahead by itself; memory for more is slow to find.
        memory = replace(memory, prefetch=1)
    has_batches = not on_device and order.limit_in is None  # on the host, and not of a mix
    are_alike = all(FORMS[spec.value_kind].is_stacked for spec in made.values())
    if fitted.settings.batch_size is None and has_batches and are_alike:
        clip = max(1, clip_nbytes(made, view.lengths))
        most = min(_MOST_TOGETHER, _MOST_BYTES_TOGETHER // clip)
        memory = replace(memory, together=fitted.division.clips_at_once(memory, most))
    return memory


def _small_rows(view: View, plan: EpochPlan, memory: Memory) -> dict[int, FrameRows]:
    """Rows for all frames of groups with small ones, smallest groups first.

    The plan has memory for mapped frames, which take none. Other small frames are resident in it:
    then a later epoch loads nothing.
    """
    mapped, features = mapped_frames(view.dataset.contents), view.dataset.features
    if view.transform is not None or view.lists is not None:
        return {}
    places = {group.group: place for place, group in enumerate(plan.groups)}
    room = sum(
        memory.num_rows[places[group]] * sum(spec.nbytes for spec in frames.specs.values())
        for group, frames in mapped.items()
    )
    rows = FrameRows.of_episodes(view.episodes.num_frames, view.episode_rows)
    sizes = dict(zip(places, bytes_by_group(view.arrays, features), strict=True))
    small_rows = {}
    for group in sorted(places.keys() - mapped.keys(), key=sizes.__getitem__):
        specs = [spec for spec in features.values() if spec.group == group]
        room -= rows.num_rows * (sizes[group] + 1)
        if room >= 0 and sizes[group] <= SMALL and all(map(can_stay, specs)):
            small_rows[group] = rows
    return small_rows


def _with_store(
    order: ViewOrder, division: MemoryDivision, plan: EpochPlan, settled: SettledMemory
) -> SettledMemory:
    """Add the memory for a store of remote chunks. There is none beside frames that stay: these are
    loaded once.

    A short epoch never fills an arena: its cursors load fewer frames than their rings have rows.
    Then arenas are reduced for all bytes that the plan needs.
    """
    memory, nbytes, rows = settled.memory, settled.nbytes, settled.rows
    pieces: Pieces = {} if rows else needed_in(order.view, plan)
    wanted = sum(int((stop - start).sum()) for start, stop in pieces.values())
    limit = order.limit(plan.shard.count)
    room = max(0, limit - _bytes_beside_store(order, memory, nbytes))
    if room < wanted <= limit and plan.num_clips <= MOST_CLIPS:
        cursors = max(1, plan.num_cursors)
        num_rows = tuple(
            min(most, cursors * _rounded(count))
            for most, count in zip(memory.num_rows, plan.most_loaded(), strict=True)
        )
        memory = replace(memory, num_rows=num_rows)
        nbytes = division.nbytes(memory)
        room = max(0, limit - _bytes_beside_store(order, memory, nbytes))
    room = min(0 if rows else room, spare_memory(nbytes, order.machine_part))
    pieces = pieces if room else {}
    return settled._replace(memory=memory, nbytes=nbytes, store_bytes=room, pieces=pieces)


def _bytes_beside_store(order: ViewOrder, memory: Memory, nbytes: int) -> int:
    """The bytes of a run beside a store of remote chunks.

    Loads of raw frames are read ahead into the store, so it has their memory, too.
    """
    view = order.view
    in_slices = all(page_kind(spec).in_slices for spec in view.dataset.features.values())
    is_read_ahead = view.transform is None and in_slices
    return nbytes - is_read_ahead * memory.max_read_ahead * order.sizes.chunk


def predict_memory(dataset: Dataset, options: LoaderOptions, *, workers: int = 0) -> int:
    """Peak memory of frames, batches and reads in flight of one rank's loaders, in bytes.

    Reads no frame without a `frame_transform`. `workers` are the rank's DataLoader workers. Python,
    torch, the training, and ready batches of a DataLoader are extra.

    Raises `MemoryLimitError` if the limit is too small.
    """
    order = plan_clips(dataset, options)
    count = (options.rank or (0, 1))[1] * max(1, workers)
    fitted = order.plan_memory(count, workers=max(1, workers))
    memory = _arenas(order, fitted, on_device=False, in_worker=workers > 0)
    return max(1, workers) * fitted.division.nbytes(memory)


def _rounded(count: int) -> int:
    """At least `count`, by at most an eighth more: similar epochs have arenas of one size."""
    step = 1 << max(0, count.bit_length() - 4)
    return max(1, -(-count // step) * step)


class RunNotices:
    """Logs each notice once per loader, as a run begins. Picklable."""

    def __init__(self) -> None:
        self._last_stats: EngineStats | None = None  # of the run before
        self._is_decoding_noted = self._are_reads_noted = False

    def remote_reads(self, store: ChunkStore, shard: Shard, url: str) -> None:
        """Log, in the first shard, that each shard reads its own frames from remote storage."""
        if shard.count == 1 or store.has_disk_cache or self._are_reads_noted:
            return
        self._are_reads_noted = True
        if shard.index == 0:
            _logger.info(
                "%s: each of %d shards reads its own frames from remote storage in every epoch, "
                "except bytes still in memory_limit; cache_dir= reads each byte once per machine",
                *(shown_place(url), shard.count),
            )

    def decoding(
        self, order: ViewOrder, num_shards: int, stats: EngineStats, *, stay: bool
    ) -> None:
        """Log, as a second epoch begins, that each epoch decodes its frames again, unless they
        `stay` in memory.

        `stats` are the statistics of the run that begins.
        """
        last, self._last_stats = self._last_stats, stats
        if last is None or not last.frames_decoded or stay or self._is_decoding_noted:
            return
        view = order.view
        dataset, cache = view.dataset, frame_reader(view.dataset)
        is_filled = cache is not None and cache.is_filling
        is_any_costly = any(map(is_costly, dataset.features.values()))
        if is_filled or view.transform is not None or not is_any_costly:
            return
        self._is_decoding_noted = True
        remedies = ["frame_cache= decodes them once per dataset"]
        if cache is not None:
            remedies = ["a larger limit of frame_cache"]
        if order.limit_in is None and (limit := order.limit_to_stay(num_shards)):
            remedies.insert(0, f"memory_limit={limit} ({format_size(limit)}) keeps them in memory")
        count = max(last.frames_decoded, last.video_frames_decoded)
        _logger.info(
            "%s: each epoch decodes frames again, %d in the last one; %s",
            *(shown_place(dataset.url), count, ", or ".join(remedies)),
        )
