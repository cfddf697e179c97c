"""Values of a function for distinct texts, as episodes of a dictionary; see `TextDictionary`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from seqrecord.companions.dictionaries import StoredDictionary
from seqrecord.errors import ClipError, NotFoundError, SourceError
from seqrecord.formats.converting.convert import convert
from seqrecord.formats.converting.convert_jobs import Workers
from seqrecord.loader.frames.array_specs import add_place
from seqrecord.loader.frames.trials import check_signature
from seqrecord.store.format.manifest import Dictionary
from seqrecord.store.format.text_keys import FEATURE, TEXT, key_of_text
from seqrecord.store.originals.inventory import Account
from seqrecord.store.originals.protocol import EpisodeInfo
from seqrecord.store.reading.contents import DictionaryPlace
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.derivations import DERIVED_FROM
from seqrecord.store.schema import Block, FeatureSpec, Frame, Schema
from seqrecord.store.storage.base import Storage
from seqrecord.store.text import repr_of
from seqrecord.store.writing.stored_schema import Codecs
from seqrecord.tools.derive.function_errors import carrying_errors
from seqrecord.tools.derive.provenance import function_name, package_versions
from seqrecord.tools.derive.results import array_of_result

TextFunction: TypeAlias = Callable[[str], Any]
"""Gets a text, and returns its value: a tensor or array."""

SUFFIX = "_embedding"


@dataclass(eq=False)
class TextSource:
    """The values of texts that a dictionary lacks.

    Args:
        dictionary: its name and text feature.
        function: see `TextFunction`.
        texts: the texts, without repetition.
        entry: what values were computed by, kept in their metadata.
    """

    dictionary: Dictionary
    function: TextFunction
    texts: Sequence[str]
    entry: Mapping[str, Any]
    format_name = "derived"
    _first_value: dict[str, Any] = field(default_factory=dict, init=False)

    def schema(self) -> Schema:
        """Return the feature of the values."""
        return Schema([self.spec()])

    def spec(self) -> FeatureSpec:
        """Return dtype and shape of the first value; calls the function once.

        The first axis of a value with several axes varies.
        """
        text = self.texts[0]
        if (value := self._first_value.get(text)) is None:
            value = self._first_value[text] = self._call(text)
        shape = value.shape if value.ndim < 2 else (None, *value.shape[1:])
        return FeatureSpec(self.dictionary.name, value.dtype, shape)

    def episodes(self) -> Sequence[EpisodeInfo]:
        """Return an episode of one frame for each text."""
        entry = {**self.entry, "packages": package_versions()}
        shared = {FEATURE: self.dictionary.text, DERIVED_FROM: entry}
        return [EpisodeInfo(key_of_text(text), 1, {TEXT: text, **shared}) for text in self.texts]

    def account(self) -> Account:
        """Return where the values come from."""
        name, text = self.dictionary.name, self.dictionary.text
        return Account(f"values of texts {text}", {name: f"texts {text}"})

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        """Yield a text's value."""
        for block in self.blocks(info):
            yield from block.frames()

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        """Yield a text's value."""
        text = info.metadata[TEXT]
        value = self._first_value.pop(text, None)
        value = self._call(text) if value is None else value
        values: Any = [value] if value.ndim > 1 else value[None]
        yield Block(1, {self.dictionary.name: values})

    def misfit(self, text: str, expected: FeatureSpec, got: object) -> ClipError:
        """Return the error for a text's value of another dtype or shape than the others."""
        return ClipError(
            "the function of per_text returns values of different dtype or shape; values of one "
            "axis have one length, and of several axes only the first one may differ. Correct the "
            "function, and derive again",
            feature=self.dictionary.name,
            expected=expected,
            got=f"{got} for the text {repr_of(text, 200)}",
        )

    @carrying_errors()
    def _call(self, text: str) -> np.ndarray[Any, Any]:
        shown_text = repr_of(text, 200)
        try:
            with torch.no_grad():
                result = self.function(text)
        except Exception as error:
            add_place(error, f"the function of per_text, for the text {shown_text}")
            raise
        value: np.ndarray[Any, Any] | None = None
        with suppress(RuntimeError, TypeError, ValueError):  # lists of several lengths
            value = array_of_result(result)
        if value is None or value.dtype.kind not in "biufcV":
            raise ClipError(
                f"the function of per_text returns no array for {shown_text}",
                feature=self.dictionary.name,
                expected="a tensor or array of numbers, such as [L, 4096]",
                got=repr_of(result, 100) if value is None else value.dtype,
            )
        return value


def distinct_texts(dataset: Dataset, feature: str, episodes: Collection[str]) -> list[str]:
    """Return the distinct texts of a feature in episodes, in their order.

    Raises `ClipError` for a feature that is no text.
    """
    spec = dataset.features.select([feature])[feature]
    if spec.value != "text":
        raise ClipError(
            "per_text is for texts", file=dataset.url, feature=feature, expected="text", got=spec
        )
    reader = dataset.select([feature])
    texts = dict[str, None]()
    for key in episodes:
        episode = reader.episodes[key]
        frames = np.flatnonzero(episode.present(feature))
        texts |= dict.fromkeys(episode.read(frames.tolist())[feature])
    return [*texts]


def text_sources(per_text: Mapping[str, TextFunction] | None, version: str) -> list[TextSource]:
    """Return a source for each function, without texts. Raises `ClipError` for other arguments."""
    sources = []
    functions: Any = {} if per_text is None else per_text
    if not isinstance(functions, Mapping) or not all(map(callable, functions.values())):
        raise ClipError(
            "per_text is not valid",
            expected='a dict of functions by text feature, such as {"task": encode_text}',
            got=repr_of(per_text, 100),
        )
    for text, function in functions.items():
        check_signature(f"the function of per_text for {text!r}", function, "text")
        entry = {"function": function_name(function), "version": version}
        sources.append(TextSource(Dictionary(text + SUFFIX, text), function, (), entry))
    return sources


@dataclass(frozen=True)
class StoredTexts:
    """What a dictionary's storage has: texts with values, and dtype and shape of these."""

    texts: Set[str] = frozenset()
    spec: FeatureSpec | None = None

    def fits(self, spec: FeatureSpec) -> bool:
        """Whether values of `spec` can be added."""
        return self.spec is None or (self.spec.dtype, self.spec.shape) == (spec.dtype, spec.shape)


def stored_texts(source: TextSource, storage: Storage, *, is_used: bool) -> StoredTexts:
    """Return the values of a source's function and version in a dictionary's storage.

    `is_used` is whether the derived dataset has the dictionary. Then values of another function or
    version raise `ClipError`, otherwise nothing is returned.
    """
    name = source.dictionary.name
    place = DictionaryPlace(name, source.dictionary.text, name, storage)
    with closing(StoredDictionary(place)) as dictionary:
        try:
            entries = dictionary.entries()
        except NotFoundError:
            return StoredTexts()
        spec = dictionary.spec
    for text, metadata in entries.items():
        stored = metadata.get(DERIVED_FROM)
        stored = stored if isinstance(stored, dict) else {}
        if all(stored.get(key) == value for key, value in source.entry.items()):
            continue
        if not is_used:
            return StoredTexts()
        raise ClipError(
            "the values of texts are of another function or version; derive into another folder",
            file=storage.url,
            feature=name,
            expected=repr_of(source.entry),
            got=f"{repr_of({key: stored.get(key) for key in source.entry})} for the text "
            f"{repr_of(text, 100)}",
        )
    return StoredTexts(entries.keys(), spec)


def write_texts(
    source: TextSource,
    storage: Storage,
    runner: Workers | None,
    codecs: Codecs | None,
    max_file_size: int | str | None,
) -> None:
    """Store the values of a source's texts in a dictionary's storage, which is closed.

    Raises `ClipError` for a value of another dtype or shape than the others.
    """
    name = source.dictionary.name
    if isinstance(codecs, Mapping):
        codecs = {name: codecs[name]} if name in codecs else None
    try:
        convert(
            source,
            storage,
            codecs=codecs,
            mode="resume",
            workers=1 if runner is None else None,
            executor=runner,
            max_file_size=max_file_size,
            statistics=False,
        )
    except SourceError as error:
        texts = {key_of_text(text): text for text in source.texts}
        if error.episode in texts and isinstance(error.expected, FeatureSpec):
            raise source.misfit(texts[error.episode], error.expected, error.got) from error
        raise
