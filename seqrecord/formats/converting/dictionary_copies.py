"""Copies of dictionaries, and what interrupted writers left of them.

The values of a text are equal in all datasets of a merge, which is checked before any is written. A
dictionary that no manifest names is of an interrupted writer: its values are used if they are
equal, and removed otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TypeAlias

from seqrecord.errors import DestinationError, NotFoundError, SchemaError
from seqrecord.store.format.arrow import text_column
from seqrecord.store.format.footer import RECORDS
from seqrecord.store.format.manifest import INDEX, MANIFEST, VERSIONS, Dictionary
from seqrecord.store.format.text import encode_metadata
from seqrecord.store.format.text_keys import FEATURE
from seqrecord.store.reading.contents import DictionaryPlace
from seqrecord.store.reading.dataset import Dataset, open_packed
from seqrecord.store.reading.text_dictionaries import TextDictionary, open_dictionary
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.folder import in_folder
from seqrecord.store.text import repr_of
from seqrecord.store.writing.committing import read_base
from seqrecord.store.writing.destination import Destination

CopyDataset: TypeAlias = Callable[[Dataset, Storage], object]
"""Adds a dataset to the one in a storage."""


def recover_texts(storage: Storage) -> None:
    """Commit the values of interrupted writers in a dictionary's storage."""
    target = Destination(storage, "resume")
    try:
        if target.recovered:
            target.commit(target.finished)
    finally:
        target.release()


def discard_texts(storage: Storage) -> None:
    """Remove all files of a dictionary that no dataset uses.

    The manifest goes first: after a kill the other files are values of an interrupted writer again.
    """
    storage.remove(MANIFEST)
    for upload in storage.unfinished(RECORDS):
        storage.remove(upload.path)
    for folder in (RECORDS, VERSIONS, INDEX):
        for file in storage.files(folder):
            storage.remove(file.path)


def copy_dictionaries(
    places: Sequence[DictionaryPlace], storage: Storage, copy: CopyDataset
) -> list[Dictionary]:
    """Copy the datasets of dictionaries to a destination, and return its dictionaries.

    Raises `DestinationError` if two datasets have different values of a text, and `SchemaError` if
    their values differ in dtype or shape. Then nothing is written.
    """
    by_name = dict[str, list[DictionaryPlace]]()
    for place in places:
        by_name.setdefault(place.name, []).append(place)
    if not by_name:
        return []
    dictionaries = {name: _joint_dictionary(group) for name, group in by_name.items()}
    for group in by_name.values():
        _check_values(group)
    manifest = read_base(storage).manifest
    used_names = {entry.name for entry in manifest.dictionaries} if manifest else set()
    folders = {name: in_folder(storage, entry.folder) for name, entry in dictionaries.items()}
    for name, folder in folders.items():
        recover_texts(folder)
        stored = replace(by_name[name][0], feature=name, storage=folder)
        try:
            if _exists(stored):
                _check_values([stored, *by_name[name]])
        except (DestinationError, SchemaError):
            if name in used_names:
                raise
            discard_texts(folder)
    for name, folder in folders.items():
        for place in by_name[name]:
            copy(_under_present_names(open_packed(place.storage), place), folder)
    return [*dictionaries.values()]


def _under_present_names(dataset: Dataset, place: DictionaryPlace) -> Dataset:
    """Return a dictionary's dataset with present names, also of the text feature in metadata."""
    contents = dataset.renamed({place.feature: place.name}).contents
    index = contents.index
    entries = (index.episode_metadata(row) for row in range(len(index.num_frames)))
    texts = [encode_metadata({**entry, FEATURE: place.text}) for entry in entries]
    return Dataset(replace(contents, index=replace(index, metadata=text_column(texts))))


def _exists(place: DictionaryPlace) -> bool:
    try:
        place.storage.size(MANIFEST)
    except NotFoundError:
        return False
    return True


def _joint_dictionary(places: Sequence[DictionaryPlace]) -> Dictionary:
    dictionary = Dictionary(places[0].name, places[0].text)
    for place in places:
        if place.text != dictionary.text:
            raise DestinationError(
                "two datasets have values of one name for texts of different features; rename one",
                file=place.storage.url,
                feature=place.name,
                expected=f"values of {dictionary.text}",
                got=f"values of {place.text}",
            )
    return dictionary


def _check_values(places: Sequence[DictionaryPlace]) -> None:
    """Raise an error unless dictionaries have values of one dtype and shape, equal by text."""
    if len(places) < 2:
        return
    owners = dict[str, TextDictionary]()
    with ExitStack() as stack:
        dictionaries = [stack.enter_context(closing(open_dictionary(place))) for place in places]
        for dictionary in dictionaries:
            _check_specs(dictionary, dictionaries[0])
            for text in dictionary:
                if (owner := owners.setdefault(text, dictionary)) is not dictionary:
                    _check_value(text, dictionary, owner)


def _check_specs(dictionary: TextDictionary, other: TextDictionary) -> None:
    spec, other_spec = dictionary.spec, other.spec
    if (spec.dtype, spec.shape) != (other_spec.dtype, other_spec.shape):
        raise SchemaError(
            "two datasets have values of texts of different dtype or shape; select features "
            "without them, and derive them again",
            file=dictionary.place.storage.url,
            feature=dictionary.name,
            expected=f"{other_spec}, as in {other.place.storage.url}",
            got=spec,
        )


def _check_value(text: str, dictionary: TextDictionary, owner: TextDictionary) -> None:
    value, other_value = dictionary.stored([text])[text], owner.stored([text])[text]
    if value.shape == other_value.shape and value.tobytes() == other_value.tobytes():
        return
    raise DestinationError(
        "two datasets have different values of a text; select features without them, and derive "
        "them again",
        file=dictionary.place.storage.url,
        feature=dictionary.name,
        expected=f"equal values in {owner.place.storage.url}",
        got=f"another value of {repr_of(text, 200)}",
    )
