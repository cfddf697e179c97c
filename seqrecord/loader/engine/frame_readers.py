"""Readers of chunks: decoded frames that another part has, such as a cache on a local disk.

A reader is attached to a dataset. Loads ask it for frames before they read pages, and give it the
frames that were decoded. It changes no value, order or state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.pages import Page
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.storage.cache_folder import Bools
from seqrecord.store.tables.grids import IntArray


class CachedRows(NamedTuple):
    """Frames after a lookup: which the reader had, bool[n]; which need no decoding, as they were
    read or lack the feature; and the reader's entries of their chunk rows.
    """

    read: Bools
    there: Bools
    entries: Mapping[int, Any]

    def take(self, index: Any) -> CachedRows:
        """The frames of an index, a mask or a slice."""
        return self._replace(read=self.read[index], there=self.there[index])


class RowFile(Protocol):
    """A mapped file with rows.

    Attributes:
        memory: uint8 [nbytes], of the file and what is mapped beside it.
    """

    @property
    def memory(self) -> npt.NDArray[np.uint8]: ...

    def check(self) -> None:
        """Ask the file for changes. Raises `StorageError` if it has become shorter."""


class RowPlaces(Protocol):
    """Rows of a feature that may be in mapped files."""

    def reset(self, rows: IntArray) -> None:
        """Place rows in the arena's memory."""

    def place(self, rows: IntArray, addresses: IntArray, file: RowFile) -> bool:
        """Place rows at addresses in a mapped file; whether that is possible."""


class DecodedFrames(Protocol):
    """The frames of a dataset that a reader may have, by group and name. Thread-safe.

    `chunk` are rows of the chunk table, `frame` numbers in the episode; int64[n] each.
    """

    @property
    def features(self) -> Mapping[int, list[str]]:
        """Names of the features, or results, of each group that has any."""

    def of_results(
        self, leading: int, specs: Mapping[str, ArraySpec], key: str | None
    ) -> DecodedFrames | None:
        """The results of the frame transform `key`, by the leading group; `None` if impossible."""

    @property
    def num_changes(self) -> int:
        """How often somebody may have written to a mapped file, as far as they were asked. When the
        number is another one, rows in these files must be placed anew.
        """

    def find_changes(self) -> None:
        """Ask all mapped files."""

    def covers(self, group: int, chunk: IntArray, frame: IntArray) -> bool:
        """Whether a group's features seem to be there for these frames."""

    def read(
        self,
        name: str,
        chunk: IntArray,
        frame: IntArray,
        out: npt.NDArray[Any],
        rows: IntArray,
        places: RowPlaces | None = None,
    ) -> CachedRows:
        """Read frames into rows of `out`, or place the rows in mapped files, if there are `places`.

        Raises the error of an original file that has changed.
        """

    def add(
        self,
        name: str,
        chunk: IntArray,
        frame: IntArray,
        out: npt.NDArray[Any],
        rows: IntArray,
        entries: Mapping[int, Any],
        pages: Iterable[tuple[Page, memoryview]],
    ) -> None:
        """Take decoded frames, in rows of `out`. `entries` are from `read`, before decoding."""


class FrameReader(ABC):
    """A reader for any datasets. Picklable."""

    @property
    @abstractmethod
    def is_filling(self) -> bool:
        """Whether frames are added."""

    @abstractmethod
    def frames_of(self, dataset: Dataset) -> DecodedFrames | None:
        """The frames of a dataset; `None` without any."""


def frame_reader(dataset: Dataset) -> FrameReader | None:
    """Return the reader attached to a dataset, if any."""
    attached = dataset.contents.attached.values()
    return next((reader for reader in attached if isinstance(reader, FrameReader)), None)


def is_costly(spec: FeatureSpec) -> bool:
    """Whether decoding frames, of a fixed shape, costs several times as much as writing them."""
    is_costly = page_kind(spec).is_costly(spec) or spec.stored.shape != spec.shape
    return is_costly and spec.value_kind.constant_nbytes(spec) is not None
