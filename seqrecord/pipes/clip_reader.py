"""Clips by their number: all clips of a call at once, in memory that is used again."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from seqrecord.clips import IntArray
from seqrecord.engine.adjacent import divide
from seqrecord.engine.arena import Place
from seqrecord.engine.batches import HostBatchBuilder
from seqrecord.engine.buffers import HostBuffers, Needs
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.loads import Load
from seqrecord.engine.stats import EngineStats
from seqrecord.pipes.crops import SelectedCrops
from seqrecord.pipes.distributed import worker_threads
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.frames import ArraySpec
from seqrecord.threads import ThreadPool

__all__ = ["ClipReader"]

_KEEP = 3  # batches that nobody uses
_FRAMES = 1 << 40  # more than an episode has
_THREAD_BYTES = 4 << 20  # one more thread for each; one thread reads what is less

_Task = Callable[[], object]


class ClipReader:
    """Reads clips of a selection. Picklable; a copy in another process begins without memory.

    The clips of a call lie side by side, so that `collate` makes a batch of them without copying. A
    frame is read and decoded once in a call, however many of its clips have it. Frames of variable
    shapes are an exception: each clip reads its own, into fresh memory.
    """

    def __init__(self, selection: ClipSelection) -> None:
        self._selection = selection
        arrays = selection.arrays
        self._fixed = {name: spec for name, spec in arrays.items() if spec.is_fixed}
        self._variable = [name for name in arrays if name not in self._fixed]
        self._dataset = selection.dataset
        if (
            self._variable and self._fixed
        ):  # then no frame is transformed: that gives arrays of fixed shapes
            self._dataset = selection.dataset.select(list(self._fixed))
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {"selection": self._selection}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["selection"])  # type: ignore[misc]

    def _begin(self) -> None:
        """Without memory, in this process."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        length, crops = self._selection.spec.length, self._selection.crops
        self._whole = _Memory(self._fixed, length)
        names = frozenset() if crops is None else crops.crops.features
        made = {} if crops is None else {n: s for n, s in crops.made.items() if n in names}
        self._windows = _Memory(made, length)

    def read(self, numbers: IntArray) -> list[dict[str, Any]]:
        """Clips by their number, int64[clips], as `SeqRecordPipe` gives them."""
        selection = self._selection
        episode, start = selection.locate(numbers)
        columns: dict[str, Sequence[Any]] = {}
        said: dict[str, list[torch.Tensor]] = {}
        if self._fixed:
            fixed, said = self._read_fixed(episode, start)
            columns.update(fixed)
        if self._variable:
            columns.update(self._read_variable(episode, start))
        keys = selection.keys_of(episode)
        return [
            {
                **{name: columns[name][i] for name in selection.arrays},
                "episode": key,
                "start": at,
                **{name: tensors[i] for name, tensors in said.items()},
            }
            for i, (key, at) in enumerate(zip(keys, start.tolist(), strict=True))
        ]

    def _read_fixed(
        self, episode: IntArray, start: IntArray
    ) -> tuple[dict[str, list[torch.Tensor]], dict[str, list[torch.Tensor]]]:
        """The features of fixed shapes, and what is said of crops: of each a tensor for a clip."""
        count = len(episode)
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            buffers = self._whole.buffers(count)
            builder = buffers.begin_batch(count)
        frames = start[:, None] + self._offsets
        wanted = (episode[:, None] * _FRAMES + frames).reshape(-1)
        # Each frame once, the row of the batch where it comes first, and that for every row.
        unique, rows, inverse = np.unique(wanted, return_index=True, return_inverse=True)
        grids = self._dataset.episode_table.groups
        load = ChunkLoader(
            self._dataset,
            buffers,
            {grid.group: 1 for grid in grids},
            grids[0].group,
            self._selection.frame_transform,
            worker_threads(),
            EngineStats(),
        )
        loads = self._loads(unique // _FRAMES, unique % _FRAMES, rows, builder)
        _do((partial(load, *one) for one in loads), builder.nbytes)
        again = rows[inverse.reshape(-1)]
        _do(_copies(builder, again), builder.nbytes)
        features: dict[str, Any] = builder.finish().features
        said: dict[str, Any] = {}
        if (crops := self._selection.crops) is not None:
            features, said = self._crop(features, episode, start, crops)
        columns = {
            name: divide(batch) if count > 1 else [batch[0]] for name, batch in features.items()
        }
        return columns, {name: list(tensor) for name, tensor in said.items()}

    @property
    def _offsets(self) -> IntArray:
        spec = self._selection.spec
        return np.arange(spec.length) * spec.dilation

    def _crop(
        self, features: dict[str, Any], episode: IntArray, start: IntArray, crops: SelectedCrops
    ) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Windows of the clips, drawn from torch's global generator, and what is said of them."""
        seed = int(torch.randint(1 << 62, ()))
        crop = crops.draw(seed, 0, episode, start)
        with self._lock:
            builder = self._windows.buffers(len(episode)).begin_batch(len(episode))
        length = self._selection.spec.length
        tasks: list[_Task] = []
        for name in sorted(crop.features):
            frames = features[name].numpy().reshape(-1, *features[name].shape[2:])
            for clip in range(len(episode)):
                rows = np.arange(clip * length, (clip + 1) * length)
                out = builder.rows[name][rows[0] : rows[-1] + 1]
                tasks.append(partial(crop.copy, name, clip, frames, rows, out))
        _do(tasks, builder.nbytes)
        return {**features, **builder.finish().features}, crops.said(crop, episode)

    def _loads(
        self, episode: IntArray, frame: IntArray, rows: IntArray, builder: HostBatchBuilder
    ) -> Iterator[tuple[Load, list[Place]]]:
        """Loads, one for each chunk, that bring these frames, in ascending order, into rows."""
        grids = self._dataset.episode_table.groups
        if self._selection.frame_transform is not None:  # a load of one group brings all others'
            grids = grids[:1]
        for grid in grids:
            chunk = grid.row(episode, grid.place(episode, frame))
            edges = np.flatnonzero(np.diff(chunk)) + 1
            for begin, end in pairwise([0, *edges.tolist(), len(chunk)]):
                inside = frame[begin:end]
                first, count = int(inside[0]), int(inside[-1] - inside[0] + 1)
                where = (0, 0, int(episode[begin]), int(chunk[begin]))
                load = Load(grid.group, *where, first, count)
                yield load, [Place(builder.rows, inside - first, rows[begin:end])]

    def _read_variable(self, episode: IntArray, start: IntArray) -> dict[str, list[Any]]:
        """The features of variable shapes: of each a list for each clip."""
        columns: dict[str, list[Any]] = {name: [] for name in self._variable}
        for row, first in zip(episode.tolist(), start.tolist(), strict=True):
            found = self._selection.dataset.episodes[self._selection.key(row)]
            frames = (first + self._offsets).tolist()
            for name, arrays in found.read(frames, features=self._variable).items():
                columns[name].append([torch.from_numpy(array) for array in arrays])
        return columns


class _Memory:
    """Buffers for clips of features of these shapes."""

    def __init__(self, specs: Mapping[str, ArraySpec], length: int) -> None:
        self._specs = dict(specs)
        self._length = length
        self._single: HostBuffers | None = None  # for one clip
        self._several: HostBuffers | None = None  # for as many as were asked for at most

    def buffers(self, count: int) -> HostBuffers:
        """Memory for so many clips."""
        kept = self._several if count > 1 else self._single
        if kept is None or kept.needs.batch_size < count:
            shared, lengths = (
                get_worker_info() is not None,
                dict.fromkeys(self._specs, self._length),
            )
            kept = HostBuffers(Needs((), self._specs, lengths, count, _KEEP, shared=shared))
        if count > 1:
            self._several = kept
        else:
            self._single = kept
        return kept


def _copies(builder: HostBatchBuilder, source: IntArray) -> Iterator[_Task]:
    """Copies of the frames that a batch has more than once: row `i` is that of `source[i]`."""
    target = np.flatnonzero(source != np.arange(len(source)))
    source = source[target]
    edges = np.flatnonzero((np.diff(target) != 1) | (np.diff(source) != 1)) + 1
    for begin, end in pairwise([0, *edges.tolist(), len(target)]):
        if begin == end:
            continue
        to = slice(int(target[begin]), int(target[end - 1]) + 1)
        of = slice(int(source[begin]), int(source[end - 1]) + 1)
        for array in builder.rows.values():
            yield partial(np.copyto, array[to], array[of])


def _do(tasks: Iterable[_Task], nbytes: int) -> None:
    """Do tasks, on as many threads as pay for so many bytes. Raises the first error."""
    todo = deque(tasks)
    threads = min(len(todo), worker_threads(), 1 + nbytes // _THREAD_BYTES)
    if threads <= 1:
        _work(todo)
        return
    with ThreadPool(threads - 1, "seqrecord-clips") as pool:
        others = [pool.submit(_work, todo) for _ in range(threads - 1)]
        _work(todo)
        for other in others:
            other.result()


def _work(todo: deque[_Task]) -> None:
    while True:
        try:
            task = todo.popleft()
        except IndexError:
            return
        try:
            task()
        except BaseException:
            todo.clear()
            raise
