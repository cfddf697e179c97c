"""Clips as names and digests of their values, whatever batches and order they came in.

`tests.loader.unordered` has the rules of what is compared.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch

from seqrecord import Budget
from tests.loader.clip_model import RAGGED

__all__ = ["Clip", "Delivery", "Plain", "Reader", "short_digest"]

WITHDRAWN_COLUMNS = ("intrinsics", "distortion", "skew")
"""Columns, alone or behind the name of a camera, that crops added by themselves."""

OF_THE_ORDER = ("is_first", "is_last", "cu_seqlens")
"""Columns that depend on the order."""

OF_FRAMES = ("_mask", "_is_pad", "_age", "_wait")
"""Ends of the names of columns with a value for each frame of a feature."""

Value = bytes | tuple[bytes, ...]


def short_digest(*parts: bytes | str) -> bytes:
    """Eight bytes of a hash of several parts."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(struct.pack("<q", len(data)) + data)
    return found.digest()


def bytes_of(value: Any) -> bytes:
    """Type, shape and bytes of a value; the same of tensors, arrays and numbers."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        value = value.item()
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, (list, tuple)):
        return b"list" + short_digest(*map(bytes_of, value))
    if isinstance(value, Mapping):
        return b"dict" + short_digest(*map(bytes_of, [*value, *value.values()]))
    return f"{type(value).__name__} {value!r}".encode()


@dataclass(frozen=True)
class Clip:
    """A clip: its name, and digests of its columns; of each frame where there are several."""

    name: str
    columns: Mapping[str, Value]

    @property
    def num_frames(self) -> int:
        """The frames of `id`, which all configurations have."""
        return len(self.columns["id"])

    def first_frames(self, number: int) -> dict[str, Value]:
        """The columns of a shorter clip, whose frames may be reversed."""
        order = slice(number) if not self.is_reversed else slice(self.num_frames - number, None)
        return {
            name: value[order] if isinstance(value, tuple) else value
            for name, value in self.columns.items()
        }

    @property
    def is_reversed(self) -> bool:
        return self.columns.get("reversed") == short_digest(bytes_of(True))

    @cached_property
    def digest(self) -> bytes:
        parts = [self.name.encode()]
        for name, value in sorted(self.columns.items()):
            frames = value if isinstance(value, tuple) else (value,)
            parts += [name.encode(), b"".join(frames)]
        return short_digest(*parts)


@dataclass
class Delivery:
    """Batches of an epoch, or of a part of one, of all ranks."""

    clips: list[list[Clip]] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)

    @property
    def all_clips(self) -> list[Clip]:
        return [clip for of_rank in self.clips for clip in of_rank]

    def with_clips(self, first_part: Delivery) -> Delivery:
        """Both parts of an epoch, with the batches of the second."""
        return Delivery([*first_part.clips, *self.clips], self.sizes, self.columns)

    @property
    def shortest(self) -> int:
        """The number of batches of the rank with the fewest."""
        return min(map(len, self.sizes))


class Reader:
    """Takes batches apart into clips, by the rules of this module."""

    def __init__(self, options: Mapping[str, Any], faults: list[str]) -> None:
        self._features, self._faults = set(options["features"]), faults
        self._has_camera, self._budget = "camera" in options, None
        if isinstance(options.get("batch_size"), Budget):
            self._budget = options["batch_size"]
        self._objects = {*options.get("metadata", ()), "caption"}  # texts, numbers or None
        self._pads = options.get("ragged") == "pad"
        self._draws_lengths = isinstance(options.get("clip_len"), tuple)
        functions = [getattr(one, "name", "") for one in options.get("samples") or ()]
        self._varies = self._draws_lengths or self._budget is not None
        self.has_subset = self._draws_lengths and "subset" in functions

    def read(self, loader: Iterable[Any], delivery: Delivery, number: int | None = None) -> int:
        """Read batches of a rank, all or some; returns their number."""
        clips, sizes = list[Clip](), list[int]()
        for batch in islice(loader, number):
            of_batch = self.clips(batch)
            clips += of_batch
            sizes.append(len(of_batch))
            delivery.columns |= set(self._forms(batch))
            self._check_budget(batch, of_batch)
        delivery.clips.append(clips)
        delivery.sizes.append(sizes)
        return len(sizes)

    def clips(self, batch: Mapping[str, Any]) -> list[Clip]:
        """The clips of a batch; of a single clip, itself."""
        names = [name for name in batch if self._is_compared(name)]
        if isinstance(batch["episode"], str):
            return [self._clip({name: batch[name] for name in names})]
        number = len(batch["episode"])
        columns = {name: self._divided(name, batch[name], number) for name in names}
        return [self._clip({name: columns[name][i] for name in names}) for i in range(number)]

    def _is_compared(self, name: str) -> bool:
        if name in OF_THE_ORDER:
            return False
        is_own = name in self._features or self._has_camera
        return is_own or not name.endswith(WITHDRAWN_COLUMNS)

    def _divided(self, name: str, value: Any, number: int) -> Any:
        """A column of a batch by clip."""
        if not is_nested(value):
            assert len(value) == number, f"{name} has {len(value)} values of {number} clips"
            return value
        parts = list(value.unbind())
        if name not in RAGGED:
            return parts
        length = len(parts) // number
        return [parts[i * length : (i + 1) * length] for i in range(number)]

    def _clip(self, columns: Mapping[str, Any]) -> Clip:
        number = None
        if self._budget is not None and "frames_is_pad" in columns:  # of the batch's longest list
            number = int((~np.asarray(columns["frames_is_pad"])).sum())
        found = dict[str, Value]()
        for name, value in columns.items():
            if self._is_of_frames(name):
                frames = list(value.unbind() if isinstance(value, torch.Tensor) else value)
                found[name] = tuple(short_digest(bytes_of(frame)) for frame in frames[:number])
            else:
                found[name] = short_digest(bytes_of(value))
        places = (columns.get("dataset"), columns["episode"], columns["start"], columns.get("row"))
        name = " ".join(str(x.item() if hasattr(x, "item") else x) for x in places if x is not None)
        return Clip(name, found)

    def _is_of_frames(self, name: str) -> bool:
        if name in ("frames", "frames_is_pad"):
            return True
        return any(name.removesuffix(end) in self._features for end in ("", *OF_FRAMES))

    def _forms(self, batch: Mapping[str, Any]) -> Iterator[str]:
        """Names, dtypes and shapes of columns, without the number of clips."""
        is_single = isinstance(batch["episode"], str)
        for name, value in batch.items():
            if self._is_compared(name):
                form = form_of(
                    value,
                    is_single=is_single,
                    varies=self._varies and self._is_of_frames(name),
                    is_feature=name in self._features,
                )
                if name in self._objects:
                    form = "object"
                yield f"{name}: {form}"

    def _check_budget(self, batch: Mapping[str, Any], clips: Sequence[Clip]) -> None:
        """Note a batch of several clips that exceeds its budget, and wrong `cu_seqlens`."""
        lengths = [clip.num_frames for clip in clips]
        if "cu_seqlens" in batch and np.diff(np.asarray(batch["cu_seqlens"])).tolist() != lengths:
            self._faults.append(f"cu_seqlens {batch['cu_seqlens']} of clips of {lengths} frames")
        if (budget := self._budget) is None or len(clips) < 2:
            return
        pads = self._pads if budget.padded is None else budget.padded
        cost = max(lengths) * len(lengths) if pads or self._draws_lengths else sum(lengths)
        if cost > budget.size or len(clips) > (budget.max_rows or len(clips)):
            self._faults.append(f"a batch of clips of {lengths} frames exceeds {budget}")


def form_of(value: Any, *, is_single: bool, varies: bool, is_feature: bool) -> str:
    """Kind, dtype and shape of a column, without the dimension of clips."""
    if isinstance(value, list):
        kinds = sorted({*map(kind_of, value)}) if is_feature else []
        return f"list {' '.join(kinds)}"
    if not isinstance(value, (torch.Tensor, np.ndarray)) or is_nested(value):
        return kind_of(value)
    shape: list[Any] = [*value.shape][not is_single :]
    if varies:
        shape[:1] = ["?"]
    return f"{kind_of(value)} {shape}"


def kind_of(value: Any) -> str:
    """Kind and dtype of a value, or of the values in a list."""
    if isinstance(value, list):
        return f"({' '.join(sorted({*map(kind_of, value)}))})"
    if isinstance(value, torch.Tensor):
        return f"{'nested ' * is_nested(value)}{value.dtype} {value.device.type}"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype}"
    return type(value).__name__


def is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_nested


class Plain:
    """The clips of an epoch in plain passes: one, or one for each number of frames."""

    def __init__(
        self, passes: Mapping[int | None, Sequence[Clip]], *, draws_lengths: bool = False
    ) -> None:
        self._passes, self._draws_lengths = passes, draws_lengths
        self._by_name = {number: defaultdict[str, list[Clip]](list) for number in passes}
        for number, clips in passes.items():
            for clip in clips:
                self._by_name[number][clip.name].append(clip)
        self.rows = Counter(map(self._key, next(iter(passes.values()))))

    @property
    def clips(self) -> list[Clip]:
        """The clips of all passes."""
        return [clip for clips in self._passes.values() for clip in clips]

    def _key(self, clip: Clip) -> tuple[str, bytes]:
        return clip.name, b"" if self._draws_lengths else clip.digest

    def row_of(self, clip: Clip) -> tuple[str, bytes] | None:
        """The row of `rows` that a clip is; `None` if it is none."""
        key = self._key(clip)
        if not self._draws_lengths:
            return key if key in self.rows else None
        plain_clips = self._same_name(clip)
        is_row = any(plain.first_frames(clip.num_frames) == clip.columns for plain in plain_clips)
        return key if is_row else None

    def _same_name(self, clip: Clip) -> Sequence[Clip]:
        by_name = self._by_name.get(clip.num_frames)  # of a subset
        return (by_name or next(iter(self._by_name.values()))).get(clip.name, ())

    def difference(self, clip: Clip) -> str:
        """A clip that is no row, and the columns in which it differs from the row of its name."""
        for plain in self._same_name(clip):
            expected = plain.first_frames(clip.num_frames) if self._draws_lengths else plain.columns
            names = {*clip.columns, *expected}
            differing = [n for n in sorted(names) if clip.columns.get(n) != expected.get(n)]
            return f"clip {clip.name!r} differs in {', '.join(differing)}"
        return f"clip {clip.name!r} is in no plain pass"
