"""Features beside the results of a derived dataset, written again where calls differ in them.

Another kept feature, window or mask changes no result of the function. So results stay where they
are, and one commit replaces the features beside them, and the entries of their episodes::

    before    latent   action [8, 7]
    now       latent   action [16, 7]   action_is_pad [16]   state [9]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from os import PathLike
from typing import Any, NamedTuple

from seqrecord.errors import ClipError
from seqrecord.store.format.edits import Relabel
from seqrecord.store.format.text import encode_metadata
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.derivations import DERIVED_FROM
from seqrecord.store.schema import Schema
from seqrecord.store.text import counted
from seqrecord.store.writing.stored_schema import Codecs, check_sizes, stored_schema
from seqrecord.tools.derive.derived_source import OF_FEATURES, DerivedSource
from seqrecord.tools.derive.provenance import columns_in
from seqrecord.tools.edit.changes import open_for_edit
from seqrecord.tools.edit.features import FeatureReplacement


class StoredResults(NamedTuple):
    """The results of an episode: its number in the source, and rows in the derived dataset."""

    number: int
    rows: range


@dataclass(frozen=True)
class ColumnUpdate:
    """The features beside the results of a derived dataset, as a source has them now.

    Attributes:
        source: the source.
        target: the derived dataset.
        entries: entries of its episodes, by key.
        reusable: episodes whose results are stored, by key.
    """

    source: DerivedSource
    target: Dataset
    entries: Mapping[str, Mapping[str, Any]]
    reusable: Mapping[str, StoredResults]

    def is_needed(self, changed: Collection[str], *, writes: bool) -> bool:
        """Whether features must be replaced before new episodes can be written, if any is.

        `changed` are the episodes whose entries differ.
        """
        if not self.reusable:
            return False
        if not self.reusable.keys().isdisjoint(changed):
            return True
        # The longest list of a table gives all samples the width of `source_frames`.
        return writes and any(
            _form(self.target.features.get(name)) != _form(spec)
            for name, spec in (self._schema or {}).items()
        )

    def check_others(self, gone: Iterable[str]) -> None:
        """Raise `ClipError` if episodes that stay would lack the new features."""
        if others := self.target.episodes.keys() - {*self.reusable, *gone}:
            raise ClipError(
                "other episodes of the derived dataset have other features beside the results; "
                "derive all episodes, without episodes and split, or into another folder",
                file=self.target.url,
                episode=min(others),
                expected=", ".join(self.source.columns),
                got=counted(len(others), "other episode"),
            )

    def commit(
        self,
        destination: str | PathLike[str],
        storage_options: Mapping[str, Any] | None,
        codecs: Codecs | None,
        max_file_size: int | str | None,
    ) -> None:
        """Replace the features, and the entries of the episodes, in one commit.

        Rows of samples that the source does not have any more are trimmed.

        Raises `ConflictError` if another writer has committed.
        """
        source, features = self.source, self.target.features
        replaced = {
            name
            for key in self.reusable
            for name in columns_in(self.entries[key], source.columns, features)
            if name in features
        }
        source.check_results(features.keys() - replaced)
        if isinstance(codecs, Mapping):
            codecs = {name: codec for name, codec in codecs.items() if name in source.columns}
        infos = {info.key: info for info in source.episodes()}
        key_of = source.dataset.contents.index.key
        infos_by_key = {
            key: infos[key_of(results.number)]
            for key, results in sorted(self.reusable.items(), key=itemgetter(1))
        }
        blocks = {key: partial(source.blocks, info) for key, info in infos_by_key.items()}
        trims = {
            key: results.rows
            for key, results in self.reusable.items()
            if len(results.rows) < len(self.target.episodes[key])
        }
        version = self.target.contents.manifest.commit
        with open_for_edit(destination, storage_options, version) as dataset:
            schema = None if self._schema is None else stored_schema(self._schema, codecs, None)
            texts = dict[str, str]()
            for key, place in dataset.index.positions.items():
                metadata = dataset.index.episode_metadata(place)
                if key in self.reusable:
                    metadata = _relabelled(metadata, infos_by_key[key].metadata)
                else:  # it lacks them all until it is replaced, and is current for no call
                    changes = {"columns": source.columns, "rows": ""}
                    metadata[DERIVED_FROM] = {**metadata[DERIVED_FROM], **changes}
                texts[dataset.index.uid(place)] = encode_metadata(metadata)
            replacement = FeatureReplacement.of(dataset, replaced, schema)
            max_bytes = check_sizes(None, max_file_size)
            with source.without_results():
                replacement.commit(blocks, [Relabel(texts)], trims=trims, max_file_size=max_bytes)

    @cached_property
    def _schema(self) -> Schema | None:
        """The features beside the results; `None` without any."""
        if not self.source.columns:
            return None
        with self.source.without_results():
            return self.source.schema()


def _form(spec: Any) -> Any:
    """What values of a feature must have in common."""
    return None if spec is None else (spec.dtype, spec.shape, spec.value)


def _relabelled(metadata: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return an episode's metadata with new entries about its features and their origin.

    The results keep the versions of packages with which they were computed.
    """
    others = {name: value for name, value in metadata.items() if name not in OF_FEATURES}
    changes = {name: value for name, value in new.items() if name in OF_FEATURES}
    old_entry, entry = metadata[DERIVED_FROM], {**new[DERIVED_FROM]}
    entry["packages"] = old_entry.get("packages", {})
    if "labels" not in old_entry:  # of an earlier version: the other metadata may be older
        del entry["labels"]
    return {**others, **changes, DERIVED_FROM: entry}
