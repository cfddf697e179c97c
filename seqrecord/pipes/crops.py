"""The crops of the clips of a selection, and what batches say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from seqrecord.clip_transforms import HorizontalFlip, WindowStep
from seqrecord.clips import IntArray
from seqrecord.engine.crops import ClipCrops, Crop
from seqrecord.reading.frames import ArraySpec
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["SelectedCrops"]

_CAMERA = ("fx", "fy", "cx", "cy")


class SelectedCrops:
    """The crops of a dataset's clips. Picklable.

    Raises `ClipError` for steps that do not fit the features.

    Args:
        episode: the row of one of the episodes; whether it has intrinsics decides for all.
    """

    def __init__(
        self,
        steps: tuple[WindowStep, ...],
        arrays: Mapping[str, ArraySpec],
        dataset: SeqRecordReader,
        episode: int,
    ) -> None:
        kinds = {name: spec.kind for name, spec in dataset.features.items()}
        self._dataset = dataset
        self.crops = ClipCrops.of(steps, arrays, kinds)
        self.made = self.crops.specs(arrays)
        """What the features of a frame look like in batches."""
        self._flips = any(isinstance(step, HorizontalFlip) for step in self.crops.steps)
        self._cameras: dict[int, tuple[float, ...]] = {}
        self._has_intrinsics = not np.isnan(self._camera(episode)).all()

    def draw(self, seed: int, epoch: int, numbers: IntArray) -> Crop:
        """The windows of clips by what tells them apart, int64[n]."""
        return Crop(self.crops, self.crops.windows(seed, epoch, numbers))

    @property
    def tensors(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape for a clip of what `said` gives, by name."""
        every = {
            "crop": (torch.int64, (4,)),
            "flipped": (torch.bool, ()),
            "intrinsics": (torch.float64, (4,)),
        }
        is_said = {"crop": True, "flipped": self._flips, "intrinsics": self._has_intrinsics}
        return {name: kind for name, kind in every.items() if is_said[name]}

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
