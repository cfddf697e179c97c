"""What `clip_transform` makes of the clips of a selection, and what batches say of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.clip_transforms import HorizontalFlip
from seqrecord.clips import IntArray
from seqrecord.engine.crops import ClipCrops, Crop
from seqrecord.errors import ClipError
from seqrecord.reading.frames import ArraySpec
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["SelectedCrops"]

_SAID = ("crop", "flipped", "intrinsics")
_CAMERA = ("fx", "fy", "cx", "cy")


class SelectedCrops:
    """The crops of a dataset's clips. Picklable.

    Raises `ClipError` for a transform that does not fit the features, and for a feature that has
    the name of what batches say of crops.

    Args:
        episode: the row of one of the episodes; whether it has intrinsics decides for all.
    """

    def __init__(
        self,
        transform: Any,
        arrays: Mapping[str, ArraySpec],
        dataset: SeqRecordReader,
        episode: int,
    ) -> None:
        if taken := [name for name in _SAID if name in arrays]:
            raise ClipError(
                "a feature has the name of what clips tell of their crop",
                file=dataset.url,
                got=", ".join(taken),
            )
        kinds = {name: spec.kind for name, spec in dataset.features.items()}
        self._dataset = dataset
        self.crops = ClipCrops.of(transform, arrays, kinds)
        self.made = self.crops.specs(arrays)
        """What the features of a frame look like in batches."""
        self._flips = any(isinstance(step, HorizontalFlip) for step in self.crops.steps)
        self._numbers: dict[int, int] = {}
        self._cameras: dict[int, tuple[float, ...]] = {}
        self._has_intrinsics = not np.isnan(self._camera(episode)).all()

    @property
    def spared(self) -> int:
        """Bytes of a frame that batches do not have."""
        whole = sum(np.prod(self.crops.frame) * _pixel(self.made[n]) for n in self.crops.features)
        return int(whole) - sum(self.made[name].nbytes for name in self.crops.features)

    def draw(self, seed: int, epoch: int, episode: IntArray, start: IntArray) -> Crop:
        """The windows of clips by the rows of their episodes and first frames, int64[n] each.

        They depend on seed, epoch, the episode's key and the first frame alone.
        """
        numbers = np.array([self._number(row) for row in episode.tolist()], np.int64)
        return Crop(self.crops, self.crops.windows(seed, epoch, numbers + start))

    def said(self, crop: Crop, episode: IntArray) -> dict[str, torch.Tensor]:
        """`crop`, int64[n, 4], and if there are such `flipped`, bool[n], and `intrinsics`,
        float64[n, 4]: not a number where an episode has none."""
        windows = crop.windows
        said = {"crop": torch.from_numpy(windows.crops)}
        if self._flips:
            said["flipped"] = torch.from_numpy(windows.flipped)
        if self._has_intrinsics:
            cameras = np.array([self._camera(row) for row in episode.tolist()])
            said["intrinsics"] = torch.from_numpy(windows.intrinsics(cameras))
        return said

    def _number(self, row: int) -> int:
        """What tells an episode from others, whatever else the dataset holds."""
        if row not in self._numbers:
            key = str(self._dataset.index.keys[row].as_py())
            digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
            self._numbers[row] = int.from_bytes(digest, "little")
        return self._numbers[row]

    def _camera(self, row: int) -> tuple[float, ...]:
        """fx, fy, cx, cy of an episode's metadata, if they are of frames of this size."""
        if row not in self._cameras:
            camera = self._dataset.index.episode_metadata(row).get("camera")
            self._cameras[row] = _intrinsics(camera, *self.crops.frame)
        return self._cameras[row]


def _intrinsics(camera: Any, height: int, width: int) -> tuple[float, ...]:
    none = (float("nan"),) * len(_CAMERA)
    if not isinstance(camera, Mapping):
        return none
    if camera.get("width", width) != width or camera.get("height", height) != height:
        return none
    values = [camera.get(name) for name in _CAMERA]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return none
    return tuple(float(value) for value in values)  # type: ignore[arg-type]


def _pixel(spec: ArraySpec) -> int:
    """Bytes of a pixel."""
    shape: npt.NDArray[Any] = np.array(spec.shape[2:], np.int64)
    return int(shape.prod()) * spec.dtype.itemsize
