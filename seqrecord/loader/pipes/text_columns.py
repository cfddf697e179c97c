"""Entries of batches that another part makes of texts: a value for each text of a feature.

`store.areas.TEXT_VALUES` has the classes, loaded by name for a dataset with dictionaries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.store.areas import TEXT_VALUES, load_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqrecord.loader.engine.batches import Batch
    from seqrecord.loader.pipes.option_values import Ragged
    from seqrecord.store.reading.dataset import Dataset

Cut: TypeAlias = Literal["pad", "list", "nested"]
"""Form of clips that differ in length; "pad" if they do not."""


class TextColumns(ABC):
    """Entries for the texts in the batches of a view. Picklable.

    Attributes:
        arrays: dtype and shape of a frame's value, and masks of padded ones, by name.
        nested: the values that come as nested tensors.
    """

    arrays: Mapping[str, ArraySpec]
    nested: frozenset[str]

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """The names of the values, without masks."""

    @abstractmethod
    def text_of(self, name: str) -> str:
        """Return the feature of the texts, for values or their mask."""

    @abstractmethod
    def fill(
        self,
        features: Mapping[str, Any],
        cut: Cut = "pad",
        *,
        single: bool = False,
        device: torch.device | None = None,
        fits: bool = False,
    ) -> dict[str, Any]:
        """Return the values for the texts in the features of a batch, by name.

        With `single`, lists over clips; if it `fits`, padded to the longest value of the batch.
        Raises `ClipError` for a text without a value.
        """


class MixedTextColumns(ABC):
    """The values of one name in the batches of a mix. Picklable."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the values."""

    @property
    @abstractmethod
    def is_nested(self) -> bool:
        """Whether they come as nested tensors."""

    @abstractmethod
    def fill(
        self,
        batch: Batch,
        features: Mapping[str, Any],
        device: torch.device | None,
        *,
        fits: bool = False,
    ) -> dict[str, Any]:
        """Return the entries of a batch; `features` are in the form for users.

        If it `fits`, padded to the longest value of the batch.
        """


def text_columns(
    dataset: Dataset,
    features: Mapping[str, ArraySpec],
    requested: Sequence[str] | None,
    ragged: Ragged,
) -> TextColumns:
    """Return the entries for texts in batches with these features.

    Raises `ClipError` for `requested` values whose texts are not in batches, and
    `MissingPackageError` without their part.
    """
    columns: TextColumns = load_entry(TEXT_VALUES).of(dataset, features, requested, ragged)
    return columns
