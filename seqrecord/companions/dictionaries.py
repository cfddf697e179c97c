"""Dictionaries: values of texts, each stored once, in a dataset beside the frames.

The dataset of a dictionary has an episode of one frame for each text::

    key               first 32 digits of SHA-256(text)
    metadata          {"text": "open the door", "feature": "task"}
    frame             {"task_embedding": [12, 4096]}

So a value is found by its text, and everything that reads, checks and appends datasets applies.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError, NotFoundError
from seqrecord.store.bfloat16 import numbers_of
from seqrecord.store.format.text_keys import TEXT, key_of_text
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.reading.contents import Contents, DictionaryPlace
from seqrecord.store.reading.metadata import load
from seqrecord.store.reading.pages import Page
from seqrecord.store.reading.text_dictionaries import TextDictionary
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import repr_of

CACHE_BYTES = 128 << 20
"""Values that stay in memory, of each dictionary in each process."""


class StoredDictionary(TextDictionary):
    """A dictionary whose values are stored as a dataset, see `TextDictionary`."""

    def __init__(self, place: DictionaryPlace) -> None:
        super().__init__(place)
        self._values = PerProcess(partial(_Values, place))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.place,)

    @property
    def spec(self) -> FeatureSpec:
        return self._values.get().spec

    @property
    def largest_nbytes(self) -> int | None:
        return self._values.get().largest_nbytes()

    def stored(self, texts: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
        return self._values.get().find(dict.fromkeys(texts))

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the metadata of each text's value."""
        return self._values.get().entries()

    def __getitem__(self, text: str) -> npt.NDArray[Any]:
        if text not in self:
            raise KeyError(text)
        value: npt.NDArray[Any] = numbers_of(self.stored([text])[text]).copy()
        return value

    def __iter__(self) -> Iterator[str]:
        return self._values.get().texts()

    def __len__(self) -> int:
        return len(self._values.get().contents.index.num_frames)

    def __contains__(self, text: object) -> bool:
        return (
            isinstance(text, str)
            and key_of_text(text) in self._values.get().contents.index.positions
        )

    def close(self) -> None:
        if (values := self._values.take()) is not None:
            values.close()


class _Values:
    """The open dataset of a dictionary in one process, and the values used last."""

    def __init__(self, place: DictionaryPlace) -> None:
        storage = place.storage
        try:
            manifest, index = load(storage)
        except NotFoundError as error:
            raise NotFoundError(
                f"the dataset has lost the values {place.name} of its texts; derive them again, or "
                "select features without them",
                file=storage.url,
            ) from error
        self.contents = Contents.of(storage, manifest, index, verify=place.verify)
        features = self.contents.features
        if [*features] != [place.feature] or features[place.feature].value != "array":
            raise FormatError(
                "not the values of texts",
                file=storage.url,
                expected=f"arrays of one feature, {place.feature}",
                got="; ".join(map(str, features.values())),
            )
        self.spec = features[place.feature]
        self.table = index.groups[self.spec.group]
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()
        self._cached_bytes = 0

    def largest_nbytes(self) -> int | None:
        if self.spec.is_fixed:
            return None
        index = self.contents.index
        return index.largest_frames(self.spec.name, np.arange(len(index.num_frames)))

    def texts(self) -> Iterator[str]:
        for row in range(len(self.contents.index.num_frames)):
            yield self._text_of(row)

    def entries(self) -> dict[str, dict[str, Any]]:
        index = self.contents.index
        rows = range(len(index.num_frames))
        return {self._text_of(row): index.episode_metadata(row) for row in rows}

    def find(self, texts: Mapping[str, None]) -> dict[str, npt.NDArray[Any]]:
        values = {}
        with self._lock:
            for text in texts:
                if (value := self._cache.get(text)) is not None:
                    self._cache.move_to_end(text)
                    values[text] = value
            positions = self.contents.index.positions
            keys = {text: key_of_text(text) for text in texts if text not in values}
            rows = {text: positions[key] for text, key in keys.items() if key in positions}
            for text, value in self._read(rows):
                values[text] = value
                self._keep(text, value)
        return values

    def _keep(self, text: str, value: npt.NDArray[Any]) -> None:
        self._cache[text] = value
        self._cached_bytes += value.nbytes
        while self._cached_bytes > CACHE_BYTES:
            self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes

    def _read(self, rows: Mapping[str, int]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Read the values of texts, given by row, a record file at a time."""
        reader, pages = self.contents.chunks, dict[str, list[tuple[str, Page]]]()
        for text, row in rows.items():
            page = self._page(text, row)
            pages.setdefault(page.chunk.path, []).append((text, page))
        for of_file in pages.values():
            data_of_pages = reader.read([page for _, page in of_file])
            for (text, page), data in zip(of_file, data_of_pages, strict=True):
                array = np.empty(reader.shapes(page, data)[0], self.spec.dtype)
                reader.decode(page, data, [0], [array])
                array.flags.writeable = False
                yield text, array

    def _page(self, text: str, row: int) -> Page:
        reader, index, table = self.contents.chunks, self.contents.index, self.table
        if (stored_text := self._text_of(row)) != text:
            texts = repr_of(text, 100), repr_of(stored_text, 100)
            raise self._damaged(row, "the value of another text", *texts)
        chunk = reader.chunk_at(self.spec.group, int(table.first_chunk[row]), row)
        [page] = (p for p in reader.pages(chunk) if p.feature == self.spec.name)
        if index.num_frames[row] != 1 or not page.num_present:
            got = f"{index.num_frames[row]} frames, {page.num_present} with a value"
            raise self._damaged(row, "a text has not one value", "one frame", got)
        return page

    def _text_of(self, row: int) -> str:
        text = self.contents.index.episode_metadata(row).get(TEXT)
        if not isinstance(text, str):
            expected, got = f"metadata {TEXT!r}, a text", repr_of(text, 100)
            raise self._damaged(row, "a value without its text", expected, got)
        return text

    def _damaged(self, row: int, problem: str, expected: str, got: str) -> FormatError:
        url, key = self.contents.storage.url, self.contents.index.key(row)
        return FormatError(problem, file=url, episode=key, expected=expected, got=got)

    def close(self) -> None:
        self.contents.chunks.close()
        self.contents.storage.close()
