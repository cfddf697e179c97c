"""Dictionaries as readers see them: values of texts, beside the frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt

from seqrecord.store.areas import DICTIONARY, load_entry
from seqrecord.store.reading.contents import DictionaryPlace
from seqrecord.store.schema import FeatureSpec


class TextDictionary(Mapping[str, npt.NDArray[Any]]):
    """Values of a feature's texts: a mapping from text to array. Thread-safe and picklable.

    Opened by the first access. bfloat16 becomes float32.

    Example:
        with seqrecord.open("latents/") as dataset:
            for name, dictionary in dataset.dictionaries.items():
                print(name, {text: value.shape for text, value in dictionary.items()})
    """

    def __init__(self, place: DictionaryPlace) -> None:
        self.place = place

    @property
    def name(self) -> str:
        """Name of the values in batches."""
        return self.place.name

    @property
    def text(self) -> str:
        """Name of the text feature."""
        return self.place.text

    @property
    @abstractmethod
    def spec(self) -> FeatureSpec:
        """Dtype and shape of a value."""

    @property
    @abstractmethod
    def largest_nbytes(self) -> int | None:
        """Size of the largest value in bytes; `None` if all have one shape."""

    @abstractmethod
    def stored(self, texts: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
        """Return the values of texts, read-only, with bfloat16 as words.

        Each distinct text is read once; texts without a value are left out. Raises `FormatError`
        for damaged values.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the files, which are opened again on demand."""

    def __repr__(self) -> str:
        return f"TextDictionary({self.name!r} of {self.text!r}, {len(self)} texts)"


def open_dictionary(place: DictionaryPlace) -> TextDictionary:
    """Return a dictionary. Raises `MissingPackageError` without the part `companions`."""
    dictionary: TextDictionary = load_entry(DICTIONARY)(place)
    return dictionary
