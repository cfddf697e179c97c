"""`collate`: joins single clips to a batch, in reused memory."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError
from seqrecord.loader.engine.arena import nested
from seqrecord.loader.engine.buffers import pool_class
from seqrecord.loader.engine.pools import BufferPool, join
from seqrecord.loader.engine.tensors import array_of, torch_dtype, user_array
from seqrecord.loader.pipes.options import one_of
from seqrecord.store.bfloat16 import BFLOAT16
from seqrecord.store.text import repr_of

_KEEP = 3  # buffers of a kind that nobody uses
_MOST_POOLS = 128  # kinds of buffers: features of all loaders of a process; the last ones used

# Of so many values torch copies a tensor with several threads; ATen's GRAIN_SIZE.
_ONE_THREAD = 32768
_is_contiguous = torch.Tensor.is_contiguous

_NUMBERS = (bool, int, float, complex)
_ARRAYS = (np.ndarray, np.generic)
_KINDS: tuple[Any, ...] = (torch.Tensor, _ARRAYS, _NUMBERS, Mapping)  # which do not mix

_DTYPES = {  # of arrays
    torch_dtype(dtype): dtype for dtype in (*map(np.dtype, ("?", *"bhilBHILefdFD")), BFLOAT16)
}
_WIDEST = {float: torch.float64, complex: torch.complex128}  # by default torch halves them

_kind_of = attrgetter("shape", "dtype", "is_cpu", "layout", "requires_grad")


class SingleClip(dict[str, Any]):
    """A clip with the names of values that `collate` keeps as lists, even if they are numbers."""

    as_lists: frozenset[str] = frozenset()

    @classmethod
    def of(cls, as_lists: frozenset[str], items: Iterable[tuple[str, Any]]) -> SingleClip:
        clip = cls(items)  # without an `__init__` of its own, which takes as long again
        clip.as_lists = as_lists
        return clip


def make_numpy(clip: dict[str, Any]) -> dict[str, Any]:
    """Replace the tensors of a clip or batch by arrays on the same memory, in place.

    Tensors of bfloat16 become float32 in new memory.
    """
    for name, value in clip.items():
        clip[name] = _as_numpy(value)
    return clip


def _as_numpy(value: Any) -> Any:
    # An array's base is its tensor, not another array, so that views keep the leased memory.
    if isinstance(value, torch.Tensor):
        return user_array(value)
    return list(map(_as_numpy, value)) if type(value) is list else value


def collate(clips: Sequence[Mapping[str, Any]], *, output: str = "torch") -> dict[str, Any]:
    """Join single clips to a batch, like a loader with `batch_size`.

    Use it as a DataLoader's `collate_fn`, with or without workers, or as
    `.batch(4).collate(seqrecord.collate)` behind a pipe. Tensors [clip_len, …] become tensors
    [clips, clip_len, …]. Numbers become tensors [clips] with the dtypes of torch's
    `default_collate`. Texts, metadata and frames of variable shape become lists. Nested tensors
    [clip_len, ?, …] become one nested tensor [clips * clip_len, ?, …].

    Unlike `default_collate`, it reuses memory: the memory of a batch is free after its last
    reference is gone. Clips of one `SeqRecordMapDataset` call are adjacent in memory and need no
    copy. In a worker process, on Linux, batches are shared memory.

    Args:
        clips: single clips.
        output: "numpy" makes NumPy arrays instead of tensors, without copying; bfloat16 becomes
            float32. A DataLoader around a `SeqRecordMapDataset` with `output="numpy"` gets arrays
            without this argument.

    Raises `ClipError`, with the entry's name, for clips with different entries or shapes, and for
    batches: remove `batch_size` from the loader, or the `collate_fn`.

    Example:
        clips = seqrecord.SeqRecordMapDataset("records/", clip_len=4)
        batch = seqrecord.collate([clips[0], clips[9]])  # image: uint8 [2, 4, height, width, 3]
    """
    one_of("torch", "numpy")("output", output)
    if isinstance(clips, ClipSequence) and (whole := clips.whole()) is not None:
        return make_numpy(whole) if output == "numpy" else whole
    if not clips or not all(issubclass(kind, Mapping) for kind in set(map(type, clips))):
        raise ClipError(
            "nothing to collate",
            expected="a list of clips, each a dict by feature",
            got=repr_of([type(clip).__name__ for clip in clips], 100),
        )
    for odd_clip in [clip for clip in clips if clip.keys() != clips[0].keys()]:
        expected, got = (", ".join(map(str, clip)) for clip in (clips[0], odd_clip))
        raise ClipError("clips of different features make no batch", expected=expected, got=got)
    _check_single(clips)
    lists = clips[0].as_lists if isinstance(clips[0], SingleClip) else frozenset()
    batch = {
        name: values if name in lists else _collate(str(name), values)
        for name, values in ((name, [clip[name] for clip in clips]) for name in clips[0])
    }
    return make_numpy(batch) if output == "numpy" else batch


def _check_single(clips: Sequence[Mapping[str, Any]]) -> None:
    """Raise `ClipError` for batches in place of clips."""
    keys = clips[0].get("episode")
    starts = clips[0].get("start")
    if isinstance(keys, list) and isinstance(starts, (torch.Tensor, np.ndarray)):
        size = len(clips) * len(keys)
        raise ClipError(
            "collate received batches: the loader has a batch_size",
            expected=f"batch_size={size} of the loader, with nothing that makes batches behind it; "
            f"or a loader without batch_size, and .batch({size}).collate(seqrecord.collate)",
            got=f"{len(clips)} batches of {len(keys)} clips",
        )


def _collate(name: str, values: list[Any]) -> Any:
    """The values of one entry as a tensor, or as the list that they are."""
    example = values[0]
    for value in values if len(set(map(type, values))) > 1 else ():
        if _kind(value) != _kind(example):
            raise _unlike(name, type(example).__name__, type(value).__name__)
    if isinstance(example, Mapping):
        return collate(values)
    try:
        if isinstance(example, _ARRAYS) and example.dtype.kind in "biufc":
            values = [torch.from_numpy(np.require(value, None, ["C", "W"])) for value in values]
        elif isinstance(example, _NUMBERS):  # as torch's `default_collate`, but on the host
            return torch.tensor(values, dtype=_WIDEST.get(type(example)), device="cpu")
        elif not isinstance(example, torch.Tensor):
            return values  # texts, and frames of variable shapes
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ClipError(
            "cannot stack these values",
            feature=name,
            expected="numbers of one kind from -2^63 to 2^63 - 1, or arrays of a dtype that torch "
            "has, in the machine's byte order",
            got=repr_of(getattr(example, "dtype", values), 100),
        ) from error
    return (_nested if any(value.is_nested for value in values) else _stacked)(name, values)


def _kind(value: Any) -> int:
    return next((i for i, kind in enumerate(_KINDS) if isinstance(value, kind)), len(_KINDS))


def _nested(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    example = tensors[0]
    for tensor in tensors:
        if not tensor.is_nested or tensor.layout is not torch.jagged:
            raise _unlike(name, "nested, torch.jagged", f"{tensor.layout} {_shown(tensor)}")
        if tensor.dtype != example.dtype or tensor.shape[2:] != example.shape[2:]:
            raise _unlike(name, _shown(example), _shown(tensor))
    return nested(tensors)


def _stacked(name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors of one shape and dtype.

    In reused memory if they are on the host and NumPy has the dtype.
    """
    example, kinds = tensors[0], set(map(_kind_of, tensors))
    for tensor in tensors if len(kinds) > 1 else ():
        if (tensor.shape, tensor.dtype) != (example.shape, example.dtype):
            raise _unlike(name, _shown(example), _shown(tensor))
    *_, is_cpu, layout, wants_gradient = _kind_of(example)
    plain = is_cpu and layout is torch.strided and not wants_gradient and example.dtype in _DTYPES
    if (
        not plain
        or len(kinds) > 1
        or {*map(type, tensors)} != {torch.Tensor}
        or not example.numel()
    ):
        return torch.stack(tensors)
    joined = join(tensors)
    return _copied(tensors) if joined is None else joined


def _copied(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Tensors of one shape and dtype, one after the other in memory that is used again."""
    example, pool = tensors[0], _pool_for(tensors)
    array = pool.acquire()
    if example.ndim and example.numel() < _ONE_THREAD and all(map(_is_contiguous, tensors)):
        batch = pool.lease(array, len(tensors))
        torch.cat(tensors, out=batch.view(-1, *example.shape[1:]))
        return batch
    # Not by torch: its threads wait for each other, and on a busy machine that takes ten times as
    # long as the copy.
    for i, tensor in enumerate(tensors):
        np.copyto(array[i, ...], array_of(tensor.resolve_conj().resolve_neg()))
    return pool.lease(array, len(tensors))


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _unlike(name: str, expected: object, got: object) -> ClipError:
    problem = "clips of different shapes or types make no batch"
    return ClipError(problem, feature=name, expected=expected, got=got)


# ---- memory for clips that are not adjacent


_MakePool: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any], bool], BufferPool]

# By process id: a fork inherits the parent's entry.
_memory: weakref.WeakValueDictionary[int, _MakePool] = weakref.WeakValueDictionary()
_of_worker: list[_MakePool] = []  # which keeps it to its end


def batch_memory() -> _MakePool:
    """This process's memory for batches of single clips, with a pool for each kind of buffer.

    It exists as long as a caller keeps a reference.
    """
    return _memory.setdefault(os.getpid(), lru_cache(maxsize=_MOST_POOLS)(_new_pool))


def _pool_for(tensors: Sequence[torch.Tensor]) -> BufferPool:
    """A pool of arrays for at least this number of tensors."""
    example, in_worker, memory = tensors[0], get_worker_info() is not None, batch_memory()
    if in_worker and memory not in _of_worker:
        _of_worker.append(memory)
    count = 1 << (len(tensors) - 1).bit_length()  # few kinds, also of last batches
    return memory((count, *example.shape), _DTYPES[example.dtype], in_worker)


def _new_pool(shape: tuple[int, ...], dtype: np.dtype[Any], is_shared: bool) -> BufferPool:
    return pool_class(is_shared=is_shared)(shape, dtype, _KEEP)


@dataclass(eq=False, repr=False)
class ClipSequence(Sequence[dict[str, Any]]):
    """A list of clips for which `collate` returns the whole batch, as long as no clip was accessed.

    Args:
        num_clips: number of clips.
        batch: makes the batch.
        single: makes all clips, as views of the same memory.
    """

    num_clips: int
    batch: Callable[[], dict[str, Any]]
    single: Callable[[], list[dict[str, Any]]]
    _clips: list[dict[str, Any]] | None = None

    def whole(self) -> dict[str, Any] | None:
        """The batch; `None` once a clip was accessed, because its user may have changed it."""
        return self.batch() if self._clips is None else None

    def as_numpy(self) -> ClipSequence:
        """The same clips with NumPy arrays."""
        batch, single = self.batch, self.single

        def clips() -> list[dict[str, Any]]:
            return list(map(make_numpy, single()))

        return ClipSequence(self.num_clips, lambda: make_numpy(batch()), clips)

    def __len__(self) -> int:
        return self.num_clips

    def __getitem__(self, index: Any) -> Any:
        if self._clips is None:
            self._clips = self.single()
        return self._clips[index]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} clips)"
