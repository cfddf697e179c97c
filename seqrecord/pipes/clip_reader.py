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
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from seqrecord.clip_frames import ClipFrames
from seqrecord.clips import IntArray
from seqrecord.engine.adjacent import divide
from seqrecord.engine.arena import FreshRows, ObjectRows, Rows
from seqrecord.engine.buffers import HostBuffers, Needs
from seqrecord.engine.calls import Calls
from seqrecord.engine.crops import Crop
from seqrecord.engine.draws import Drawn
from seqrecord.engine.host_batches import HostBatchBuilder
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.ragged import nested
from seqrecord.engine.stats import EngineStats
from seqrecord.frame_keys import frame_keys, split_keys
from seqrecord.grids import ChunkGrid, followed
from seqrecord.pipes.clip_sets import Alike, sets_of
from seqrecord.pipes.collating import ClipSequence
from seqrecord.pipes.distributed import worker_threads
from seqrecord.pipes.draws import ClipDraws
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.frames import ArraySpec
from seqrecord.threads import ThreadPool
from seqrecord.units import parse_size

__all__ = ["ClipReader"]

_KEEP = 3  # batches that nobody uses
_THREAD_BYTES = 4 << 20  # one more thread for each; one thread reads what is less

_Task = Callable[[], object]


class ClipReader:
    """Reads clips of a selection. Picklable; a copy in another process begins without memory.

    The clips of a call lie side by side, so that `collate` makes a batch of them without copying. A
    frame is read and decoded once in a call, however many of its clips have it. Frames of variable
    shapes have fresh memory. Small raw features whose frames all fit into `memory_limit` bytes stay
    in memory once they were read.
    """

    def __init__(self, selection: ClipSelection, memory_limit: int | str) -> None:
        self._selection = selection
        self._memory_limit = memory_limit
        arrays = selection.arrays
        self._fixed = {name: spec for name, spec in arrays.items() if spec.is_fixed}
        self._variable = {name: spec for name, spec in arrays.items() if not spec.is_fixed}
        self._alike = sets_of(selection, parse_size(memory_limit))
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {"selection": self._selection, "memory_limit": self._memory_limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _begin(self) -> None:
        """Without memory, in this process."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        selection = self._selection
        self._whole = _Memory(self._fixed, selection.clip_frames.lengths)
        made = dict(selection.made)
        if selection.draws is not None and selection.draws.functions is None:
            made = {name: made[name] for name in selection.draws.cropped}
        self._made = _Memory(made, selection.lengths)

    def read(self, numbers: IntArray) -> ClipSequence:
        """Clips by their number, int64[clips], as `SeqRecordPipe` gives them."""
        selection = self._selection
        episode, start = selection.locate(numbers)
        draws, seed = selection.draws, 0
        if draws is not None or selection.steps is not None:
            # From torch's global generator, which a sampler draws the numbers from.
            seed = int(torch.randint(1 << 62, (), device="cpu"))
        frames = selection.drawn_frames(seed, 0)
        features = self._read(frames, episode, start)
        said = selection.said_of_frames(frames, episode, start)
        if draws is not None:
            drawn = draws.draw(seed, 0, episode, start)
            said |= draws.said(drawn, episode)
            if drawn.calls is not None:
                features = self._call(features, drawn, drawn.calls)
            elif drawn.crop is not None:
                features.update(self._crop(features, drawn.crop))
        columns = selection.columns.of(episode, start, said)
        features = {name: self._nested(name, features[name]) for name in selection.made}

        def batch() -> dict[str, Any]:
            whole = {
                name: nested(values) if name in selection.nested else values
                for name, values in features.items()
            }
            return {**whole, **columns}

        def single() -> list[dict[str, Any]]:
            given = {name: _divided(values) for name, values in features.items()}
            return [
                selection.columns.single({name: given[name][i] for name in given}, columns, i)
                for i in range(len(numbers))
            ]

        return ClipSequence(len(numbers), batch, single)

    def _read(self, frames: ClipFrames, episode: IntArray, start: IntArray) -> dict[str, Any]:
        """The features: tensors [clips, frames, …], of variable shapes a list for each clip."""
        count = len(episode)
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            buffers = self._whole.buffers(count)
            builder = buffers.begin_batch(count)
        features: dict[str, Any] = {}
        for alike in self._alike:
            wanted = frames.find(alike.names[0], episode, start).frames
            for name, kept in alike.kept.items():
                rows = (kept.first[episode][:, None] + wanted).reshape(-1)
                kept.take(rows, builder.rows[name][: len(rows)])
            if not alike.kept:
                features.update(self._read_alike(alike, builder, buffers, episode, wanted))
        return {**features, **builder.finish()[0]}

    def _read_alike(
        self,
        alike: Alike,
        builder: HostBatchBuilder,
        buffers: HostBuffers,
        episode: IntArray,
        frames: IntArray,
    ) -> dict[str, Any]:
        """Read features of which clips have the same frames; returns those of variable shapes.

        Those of fixed shapes are in the builder.
        """
        names, dataset = alike.names, alike.dataset
        count, selection = len(episode), self._selection
        wanted = frame_keys(episode[:, None], frames).reshape(-1)
        # Each frame once, the row of the batch where it comes first, and that for every row.
        unique, rows, inverse = np.unique(wanted, return_index=True, return_inverse=True)
        inverse = inverse.reshape(-1)
        variable = {name: self._variable[name] for name in names if name in self._variable}
        fresh: dict[str, Any] = {
            name: FreshRows(len(wanted), spec.dtype)
            if spec.value == "array"
            else ObjectRows(len(wanted), spec)
            for name, spec in variable.items()
        }
        grids, transform = dataset.episode_table.groups, selection.frame_transform
        loader = ChunkLoader(
            dataset,
            buffers,
            {grid.group: 1 for grid in grids},
            grids[0].group,
            None if transform is None else (transform, selection.arrays),
            worker_threads(),
            EngineStats(),
            clip_frames=None if transform is not None else selection.clip_frames,
        )
        arrays = {name: builder.rows[name] for name in names if name in builder.rows}
        nbytes = sum(array.nbytes for array in arrays.values())
        largest = sum(spec.largest or 0 for spec in variable.values())
        targets, places = {**arrays, **fresh}, rows
        if alike.is_small:
            places = np.arange(len(unique))
            targets = {n: np.empty((len(unique), *a.shape[1:]), a.dtype) for n, a in arrays.items()}
        target, at = _Only(targets), split_keys(unique)
        loads = self._loads(loader, grids, *at, target, places, at_once=alike.is_small)
        _do(loads, nbytes + len(unique) * largest)
        if alike.is_small:
            for name, array in arrays.items():
                np.take(targets[name], inverse, 0, out=array[: len(inverse)], mode="clip")
            return {}
        again = rows[inverse]
        _do(_copies(list(arrays.values()), again), nbytes)
        features: dict[str, Any] = {}
        for name, values in fresh.items():
            if variable[name].value == "array":
                features[name] = _frames(values, again.reshape(count, -1))
            else:
                features[name] = [
                    [values[row] for row in clip] for clip in again.reshape(count, -1)
                ]
        return features

    def _nested(self, name: str, clips: Any) -> Any:
        """A feature, with each clip's frames as one nested tensor if they come so."""
        return [nested(clip) for clip in clips] if name in self._selection.nested else clips

    def _crop(self, features: Mapping[str, Any], crop: Crop) -> dict[str, Any]:
        """Windows of the clips, of the features that have them."""
        count = len(crop.windows)
        with self._lock:
            builder = self._made.buffers(count).begin_batch(count)
        tasks: list[_Task] = []
        for name in sorted(crop.features):
            rows = np.arange(len(features[name][0]))
            for clip, out in enumerate(builder.clips[name]):
                tasks.append(
                    partial(crop.copy, name, clip, features[name][clip].numpy(), rows, out)
                )
        _do(tasks, builder.nbytes)
        return builder.finish()[0]

    def _call(self, features: Mapping[str, Any], drawn: Drawn, calls: Calls) -> dict[str, Any]:
        """What functions make of the clips."""
        count = len(calls)
        with self._lock:
            builder = self._made.buffers(count).begin_batch(count)

        def call(number: int) -> None:
            clip = {name: _arrays(column[number]) for name, column in features.items()}
            builder.make(number, calls, number, ClipDraws.views(clip, number, drawn.crop))

        # Nobody knows how long a call takes: it is worth a thread.
        _do([partial(call, number) for number in range(count)], count * _THREAD_BYTES)
        return builder.finish()[0]

    def _loads(
        self,
        loader: ChunkLoader,
        grids: Sequence[ChunkGrid],
        episode: IntArray,
        frame: IntArray,
        target: Rows,
        rows: IntArray,
        *,
        at_once: bool,
    ) -> Iterator[_Task]:
        """Loads that bring these frames, in ascending order, into rows: one for each chunk, or one
        for all of a group."""
        if self._selection.frame_transform is not None:  # a load of one group brings all others'
            grids = grids[:1]
        for grid in grids:
            chunk = grid.row(episode, grid.place(episode, frame))
            edges = [0, len(chunk)]
            if not at_once:
                edges = followed(same=chunk)
            for a, b in pairwise(edges):
                one = chunk[a:b], frame[a:b], target, rows[a:b]
                yield partial(loader.load_frames, grid.group, *one)


class _Only:
    """Rows of some features; what a transform makes of others goes nowhere."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = rows

    def __getitem__(self, feature: str) -> Any:
        return self._rows.get(feature, _NOWHERE)


class _Nowhere:
    """Rows that keep nothing."""

    def __setitem__(self, row: int, array: npt.NDArray[Any]) -> None:
        """Forget the array."""


_NOWHERE = _Nowhere()


class _Memory:
    """Buffers for clips of features of these shapes."""

    def __init__(self, specs: Mapping[str, ArraySpec], lengths: Mapping[str, int]) -> None:
        self._specs = dict(specs)
        self._lengths = {name: lengths[name] for name in specs}
        self._single: HostBuffers | None = None  # for one clip
        self._several: HostBuffers | None = None  # for as many as were asked for at most

    def buffers(self, count: int) -> HostBuffers:
        """Memory for so many clips."""
        kept = self._several if count > 1 else self._single
        if kept is None or kept.needs.batch_size < count:
            shared = get_worker_info() is not None
            kept = HostBuffers(Needs((), self._specs, self._lengths, count, _KEEP, shared=shared))
        if count > 1:
            self._several = kept
        else:
            self._single = kept
        return kept


def _divided(batch: Any) -> Sequence[Any]:
    """The clips of a batch: a tensor [clips, frames, …], or a list of clips."""
    if isinstance(batch, list):
        return batch
    return divide(batch) if len(batch) > 1 else [batch[0]]


def _arrays(frames: Any) -> Any:
    """Those of a tensor [frames, …], or of a list of frames, which may be texts."""
    if isinstance(frames, list):
        return [f.numpy() if isinstance(f, torch.Tensor) else f for f in frames]
    return frames.numpy()


def _frames(values: Sequence[Any], rows: IntArray) -> list[list[Any]]:
    """Tensors of the values in these rows, or the texts; int64[clips, frames].

    Each tensor has memory of its own, for a clip's user may write to it.
    """
    seen: set[int] = set()
    clips: list[list[Any]] = []
    for clip in rows.tolist():
        frames = [
            value.copy() if row in seen and isinstance(value, np.ndarray) else value
            for row, value in ((row, values[row]) for row in clip)
        ]
        clips.append([torch.from_numpy(f) if isinstance(f, np.ndarray) else f for f in frames])
        seen.update(clip)
    return clips


def _copies(arrays: Sequence[npt.NDArray[Any]], source: IntArray) -> Iterator[_Task]:
    """Copies of the frames that arrays have more than once: row `i` is that of `source[i]`."""
    target = np.flatnonzero(source != np.arange(len(source)))
    source = source[target]
    for begin, end in pairwise(followed(target, source)):
        to = slice(int(target[begin]), int(target[end - 1]) + 1)
        of = slice(int(source[begin]), int(source[end - 1]) + 1)
        for array in arrays:
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
