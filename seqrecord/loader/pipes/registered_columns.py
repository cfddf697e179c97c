"""Columns of batches that another part makes, for an argument of the loaders.

The loader knows no camera. `store.areas.COLUMNS` has a maker for `camera=`, which is loaded by its
name when an argument asks for columns::

    camera=True  ->  ColumnMaker.values()  ->  ColumnMaker.make(…)  ->  ImageColumns
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from seqrecord.store.areas import COLUMNS, load_entry
from seqrecord.store.units import check

if TYPE_CHECKING:
    from seqrecord.loader.clips.frames import ClipWindow
    from seqrecord.loader.clips.tables import IntArray
    from seqrecord.loader.engine.crops import ClipCrops, ValuesChange
    from seqrecord.loader.frames.array_specs import ArraySpec
    from seqrecord.loader.pipes.columns import ClipColumn
    from seqrecord.store.cameras.crop_windows import FloatArray
    from seqrecord.store.reading.dataset import Dataset


class ColumnOptions:
    """Base class of the values of an argument that adds columns, such as `seqrecord.Camera`."""


class ColumnMaker(ABC):
    """Makes the columns of an argument. An instance, without state, is registered.

    Attributes:
        values: the class of the argument's values, picklable; `True` is one with its defaults.
    """

    values: ClassVar[type[ColumnOptions]]

    @abstractmethod
    def make(
        self,
        options: Any,
        dataset: Dataset,
        arrays: Mapping[str, ArraySpec],
        windows: Mapping[str, ClipWindow],
        row: int,
    ) -> ImageColumns:
        """The columns of a loader. Raises `ClipError` if there is none.

        Args:
            options: the value of the argument.
            dataset: the dataset of the loader.
            arrays: arrays of a frame, after `frame_transform`.
            windows: the frames of each feature.
            row: row in the index of an episode, which decides for all which images have columns.
        """


class ImageColumns(ABC):
    """Columns that describe images, and follow their crops, resizing and flips. Picklable."""

    @property
    @abstractmethod
    def columns(self) -> Sequence[ClipColumn]:
        """The columns. Values are made of a batch's draws, and read beside its frames."""

    @property
    @abstractmethod
    def images(self) -> Sequence[str]:
        """The names of the images that have columns."""

    @abstractmethod
    def principal_points(self, image: str, rows: IntArray, frames: IntArray) -> FloatArray:
        """The centers of windows around them, x and y in pixels of stored or resized frames.

        Of frames, int64[n], of episodes by their rows in the index, int64[n]; float64[n, 2]. Raises
        `ClipError` if they are unknown.
        """

    @abstractmethod
    def flips(
        self,
        crops: Sequence[ClipCrops],
        arrays: Mapping[str, ArraySpec],
        kinds: Mapping[str, str | None],
    ) -> Flips:
        """What flips change beside the pixels. Raises `ClipError` for flips that are refused."""

    @abstractmethod
    def of_features(self, names: Collection[str]) -> ColumnOptions | None:
        """The argument for a loader that reads these features only; `None` for no columns."""


@dataclass(frozen=True)
class Flips:
    """What flips change beside the pixels of each feature: nothing without such columns.

    Attributes:
        partners: features that are exchanged in flipped clips, in both directions.
        points: features of points.
    """

    partners: Mapping[str, str] = field(default_factory=dict)
    points: Sequence[str] = ()

    def changes(self, flipped: npt.NDArray[np.bool_]) -> Mapping[str, ValuesChange]:  # noqa: ARG002
        """The changes of points, by feature, in clips of which these are flipped, bool[n]."""
        return {}


def find_maker(argument: str) -> ColumnMaker:
    """The maker of an argument. Raises `MissingPackageError` without its part."""
    maker: ColumnMaker = load_entry(COLUMNS[argument])
    return maker


def check_columns(argument: str, value: Any) -> ColumnOptions | None:
    """Return the checked value of an argument; `None` for false, which needs no part."""
    is_flag = isinstance(value, (bool, np.bool_))
    if is_flag and not value:
        return None
    values = find_maker(argument).values
    if is_flag:
        return values()
    expected = f"True, False or a seqrecord.{values.__name__}(…)"
    options: ColumnOptions = check(argument, value, isinstance(value, values), expected)
    return options
