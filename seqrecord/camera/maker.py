"""What the loader loads for `camera=`."""

from __future__ import annotations

from collections.abc import Mapping

from seqrecord.camera.columns import CameraColumns
from seqrecord.camera.rigs import EpisodeRigs
from seqrecord.camera.values import Camera
from seqrecord.loader.clips.frames import ClipWindow
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.pipes.registered_columns import ColumnMaker
from seqrecord.store.reading.dataset import Dataset


class CameraMaker(ColumnMaker):
    """Makes the columns of cameras."""

    values = Camera

    def make(
        self,
        options: Camera,
        dataset: Dataset,
        arrays: Mapping[str, ArraySpec],
        windows: Mapping[str, ClipWindow],
        row: int,
    ) -> CameraColumns:
        """See `ColumnMaker.make`."""
        return CameraColumns(EpisodeRigs.of(options, dataset, arrays, row), windows)


CAMERA = CameraMaker()
