"""Joins datasets: the episodes of one, with the features of all."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from seqrecord.companions.join_matching import find_partners
from seqrecord.companions.joined_index import Partners, companion_specs, joined_index
from seqrecord.companions.joined_storage import JoinedStorage, joined_path
from seqrecord.errors import ClipError, JoinError, NotFoundError, SchemaError
from seqrecord.store.format.manifest import Manifest, RecordFile
from seqrecord.store.reading.contents import Contents
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.external_files import ExternalFiles, open_external_files
from seqrecord.store.reading.opening import Check, Missing
from seqrecord.store.schema import Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.tables.grids import IntArray
from seqrecord.store.text import counted, first_of, repr_of, shown_place

if TYPE_CHECKING:
    import numpy.typing as npt

    from seqrecord.store.format.references import ExternalFile, Reference

_SHOWN_KEYS = 3

_logger = logging.getLogger("seqrecord")


def join_datasets(
    base: Dataset,
    companions: Sequence[Dataset],
    *,
    missing: Missing = "error",
    check: Check = "pages",
) -> Dataset:
    """Return the episodes of `base` with the features of companions; see `seqrecord.open`.

    Raises `JoinError` for episodes without a partner, or with a partner for other frames, and
    `SchemaError` for a name that two datasets use.
    """
    for name, value, choices in (
        ("missing", missing, ("error", "drop", "pad")),
        ("check", check, ("pages", "lengths")),
    ):
        if value not in choices:
            raise ClipError(
                f"unknown {name}", file=base.url, expected=", ".join(choices), got=repr_of(value)
            )
    companions = [_without_texts_of(base, companion) for companion in companions]
    _check_names(base, companions)
    partners = [find_partners(base, companion, check) for companion in companions]
    rows = np.arange(len(base.contents.index.num_frames))
    without = np.zeros(len(rows), bool)
    for companion, found in zip(companions, partners, strict=True):
        lacking = np.flatnonzero(found.episode < 0)
        if len(lacking) and missing == "error":
            _refuse_missing(base, companion, lacking)
        without[lacking] = True
    if missing == "drop":
        rows = rows[~without]
        if not len(rows):
            raise JoinError("no episode has a partner in each companion", file=base.url)
    taken = tuple(found.take(rows) for found in partners)
    join = Join(base, tuple(companions), rows, taken)
    join.check_trims()
    join.warn(without, missing)
    return Dataset(join.contents())


def check_texts(
    joined: Dataset, companions: Sequence[Dataset], features: Sequence[str] | None
) -> None:
    """Raise `JoinError` for selected values of texts without a feature of the texts.

    The feature itself need not be selected.
    """
    schema = joined.contents.index.schema.active
    for companion in companions:
        for place in companion.contents.dictionaries:
            text = schema.get(place.text)
            is_selected = features is None or place.name in features
            if not is_selected or (text is not None and text.value == "text"):
                continue
            raise JoinError(
                f"a companion has values of texts {place.text}, which no dataset of the join has. "
                f"If they have another name now, rename them: join=[seqrecord.open(COMPANION)."
                f"renamed({{{place.text!r}: NAME}})], or derive into another folder; or select "
                f"features= without {place.name}",
                file=companion.url,
                feature=place.name,
                expected=f"the feature {place.text}, a text",
                got=text or first_of(list(schema), 20),
            )


def _without_texts_of(base: Dataset, companion: Dataset) -> Dataset:
    """Return a companion without texts that only its dictionaries select and `base` has too."""
    contents = companion.contents
    if not (twice := contents.implied & base.features.keys()):
        return companion
    specs = [spec for name, spec in contents.features.items() if name not in twice]
    return Dataset(replace(contents, features=Schema(specs), implied=contents.implied - twice))


def check_requested_names(
    base: Dataset, companion_names: Collection[str], requested: Sequence[str]
) -> None:
    """Raise `SchemaError` for a requested feature that the base and a companion have."""
    names, schema = base.contents.names, base.contents.index.schema.active
    of_base = {names.get(name, name) for name in schema}
    if twice := [name for name in requested if name in of_base and name in companion_names]:
        raise SchemaError(
            "a dataset and its companion have features of one name; open the companion with "
            "features= of others, or rename them with Dataset.renamed",
            file=base.url,
            feature=twice[0],
            got=", ".join(twice),
        )


def _check_names(base: Dataset, companions: Sequence[Dataset]) -> None:
    owners = dict.fromkeys(base.contents.value_names, base.url)
    for companion in companions:
        if twice := [name for name in companion.contents.value_names if name in owners]:
            raise SchemaError(
                "two datasets have features of one name; select others with features= when you "
                "open one of them, or rename them with Dataset.renamed",
                file=companion.url,
                feature=twice[0],
                got=f"{', '.join(twice)}, also in {shown_place(owners[twice[0]])}",
            )
        owners |= dict.fromkeys(companion.contents.value_names, companion.url)


def _refuse_missing(base: Dataset, companion: Dataset, rows: IntArray) -> None:
    keys = base.contents.index.keys_of(rows[:_SHOWN_KEYS])
    raise JoinError(
        f"{counted(len(rows), 'episode')} of {shown_place(base.url)} without a partner in a "
        "companion; pass missing='drop' to leave them out, or missing='pad' to keep them without "
        "its features",
        file=companion.url,
        episode=first_of(keys, _SHOWN_KEYS),
        expected=f"partners of {counted(len(base.episodes), 'episode')}",
        got=len(base.episodes) - len(rows),
    )


@dataclass(frozen=True, eq=False)
class Join:
    """Episodes `rows` of `base`, and their partners in each companion. Picklable."""

    base: Dataset
    companions: tuple[Dataset, ...]
    rows: IntArray
    partners: tuple[Partners, ...]

    @property
    def companion_places(self) -> list[str]:
        """Places of the companions."""
        return [shown_place(companion.url) for companion in self.companions]

    def contents(self) -> Contents:
        """Return the contents of the joined dataset."""
        base, members = self.base.contents, self.members
        schema = self._schema()
        paths = [len(member.manifest.record_files) for member in members]
        first_files = list(accumulate(paths, initial=0))[1:]
        parts = [
            (companion.contents.index, partners, first_file)
            for companion, partners, first_file in zip(
                self.companions, self.partners, first_files, strict=False
            )
        ]
        index = joined_index(base.index, self.rows, schema, parts)
        manifest = replace(
            base.manifest,
            schema=schema,
            num_episodes=len(index.num_frames),
            num_frames=int(index.num_frames.sum()),
            record_files=tuple(
                RecordFile(joined_path(number, file.path), file.size, file.file_id)
                for number, member in enumerate(members)
                for file in member.manifest.record_files
            ),
            fingerprint=self._fingerprint(),
            statistics=_statistics_file([member.manifest for member in members]),
        )
        others = [member.storage for member in members[1:]]
        places = [place for member in members for place in member.dictionaries]
        verify_modes = [member.verify for member in members]
        return replace(
            base,
            storage=JoinedStorage(base.storage, others),
            manifest=manifest,
            index=index,
            features=self._features(schema),
            verify="always" if "always" in verify_modes else any(verify_modes),  # the strictest
            names={},
            externals=self._externals(),
            bad=base.bad.taken(base.index, self.rows),
            join=self,
            dictionaries=tuple(places),
        )

    def reopened(self, fields: dict[str, Any]) -> Contents:
        """Return the joined contents, with these `fields` of a pickled dataset."""
        contents = self.contents()
        fields |= {"manifest": contents.manifest}
        return replace(contents, **fields, index=contents.index.renamed(fields["names"]))

    @property
    def members(self) -> list[Contents]:
        """The contents of `base` and the companions."""
        return [self.base.contents, *(companion.contents for companion in self.companions)]

    def _schema(self) -> Schema:
        specs = list(self.base.contents.index.schema.values())
        for companion in self.companions:
            groups = len({spec.group for spec in specs})
            schema, selected = companion.contents.index.schema, companion.features
            specs += companion_specs(schema, selected, len(specs), groups)
        return Schema(specs)

    def _features(self, schema: Schema) -> Schema:
        """Return the selected features of all, as large as each dataset gives them."""
        specs = list(self.base.features.values())
        for companion in self.companions:
            specs += [
                replace(spec, group=schema[name].group) for name, spec in companion.features.items()
            ]
        return Schema(specs)

    def _fingerprint(self) -> str:
        """Return a digest of the content: of all datasets, and which frames are together."""
        digest = hashlib.sha256(self.rows.astype("<i8").tobytes())
        for member in self.members:
            digest.update(member.manifest.fingerprint.encode())
        for partners in self.partners:
            digest.update(partners.episode.astype("<i8").tobytes())
            digest.update(partners.start.astype("<i8").tobytes())
        return digest.hexdigest()

    def _externals(self) -> ExternalFiles | None:
        files = [
            member.externals or open_external_files(member.storage)
            for member in self.members
            if member.externals or any(table.external.any() for table in member.index.groups)
        ]
        return JoinedFiles(files) if len(files) > 1 else next(iter(files), None)

    def statistics(self) -> Statistics:
        """Return the statistics of the datasets whose frames are all here."""
        base = self.base.contents
        lengths = base.index.num_frames[self.rows]
        members = [(self.base, Partners(self.rows, np.zeros_like(self.rows)))]
        members += zip(self.companions, self.partners, strict=True)
        features: dict[str, Any] = {}
        for dataset, partners in members:
            order = np.argsort(partners.episode, kind="stable")
            contents = dataset.contents
            if partners.take(order).are_all_of(lengths[order], contents.index.num_frames):
                # Another dataset may have a feature of the same name that is selected.
                selected = dataset.features.keys()
                features |= {n: one for n, one in contents.statistics.items() if n in selected}
        if not features:
            return Statistics(0, {}, lacking=base.storage.url)
        return Statistics(int(lengths.sum()), features)

    def check_trims(self) -> None:
        """Raise `JoinError` for a companion whose own trim hides frames that the dataset has."""
        lengths = self.base.contents.index.num_frames[self.rows]
        for companion, partners in zip(self.companions, self.partners, strict=True):
            index, rows = companion.contents.index, np.flatnonzero(partners.episode >= 0)
            episode, start = partners.episode[rows], partners.start[rows]
            is_short = (start < 0) | (start + lengths[rows] > index.num_frames[episode])
            hides = np.zeros(len(rows), bool)
            if not is_short.any():
                continue
            for table in index.groups:
                first_row = table.first_chunk[episode]
                last_row = first_row + table.num_chunks[episode] - 1
                end = table.first_frame[last_row] + table.num_frames[last_row].astype(np.int64)
                hides |= (start < 0) & (table.first_frame[first_row] < 0)
                hides |= (start + lengths[rows] > index.num_frames[episode]) & (
                    end > index.num_frames[episode]
                )
            if (hides & is_short).any():
                row = int(rows[np.argmax(hides & is_short)])
                raise JoinError(
                    "a trimmed episode of a companion has fewer frames than the dataset; trim the "
                    "dataset too, or copy the companion without the trimmed frames (`seqrecord "
                    "merge COMPANION -o NEW`)",
                    file=companion.url,
                    episode=self.base.contents.index.key(int(self.rows[row])),
                )

    def warn(self, without: npt.NDArray[np.bool_], missing: Missing) -> None:
        """Log episodes without partners, and frames without values."""
        lengths = self.base.contents.index.num_frames[self.rows]
        num_gaps = 0
        for companion, partners in zip(self.companions, self.partners, strict=True):
            frames = companion.contents.index.num_frames[partners.episode]
            begin = np.maximum(partners.start, 0)
            stop = np.minimum(partners.start + lengths, frames)
            values = np.where(partners.episode >= 0, np.maximum(stop - begin, 0), lengths)
            num_gaps += int((lengths - values).sum())
        facts = []
        if without.any():
            effect = "left out" if missing == "drop" else "without values"
            count = counted(int(without.sum()), "episode")
            facts.append(f"{count} of {len(without):,} without a partner: {effect}")
        if num_gaps:
            facts.append(f"{counted(num_gaps, 'frame')} of other episodes without values")
        if facts:
            names = ", ".join(self.companion_places)
            text = "; ".join(facts)
            _logger.warning("%s joined with %s: %s", shown_place(self.base.url), names, text)


def _statistics_file(manifests: Sequence[Manifest]) -> Any:
    """Return an entry of statistics, with the mark of values that are not finite in any."""
    files = [manifest.statistics for manifest in manifests if manifest.statistics is not None]
    if not files:
        return None
    return replace(files[0], non_finite=any(file.non_finite for file in files))


class JoinedFiles:
    """External files of several datasets, by the ids of their lists; see `ExternalFiles`."""

    def __init__(self, parts: Sequence[ExternalFiles]) -> None:
        self._parts = tuple(parts)
        self._owners: dict[str, ExternalFiles] = {}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self._parts,)

    def _owner(self, list_id: str) -> ExternalFiles:
        owner = self._owners.get(list_id)
        if owner is None:
            owner = self._parts[-1]
            for part in self._parts[:-1]:
                with suppress(NotFoundError):
                    part.file_of(list_id, 0)
                    owner = part
                    break
            self._owners[list_id] = owner
        return owner

    def read(self, reference: Reference, memory: npt.NDArray[np.uint8] | None = None) -> memoryview:
        return self._owner(reference.list_id).read(reference, memory)

    def compare(self, lists: Sequence[str], *, always: bool = False) -> None:
        for list_id in lists:
            self._owner(list_id).compare([list_id], always=always)

    def check(self, reference: Reference) -> None:
        self._owner(reference.list_id).check(reference)

    def states(self, reference: Reference) -> list[list[Any] | None]:
        return self._owner(reference.list_id).states(reference)

    def evidence(self, reference: Reference) -> list[list[Any]]:
        return self._owner(reference.list_id).evidence(reference)

    def file_of(self, list_id: str, number: int) -> ExternalFile:
        return self._owner(list_id).file_of(list_id, number)

    def place_of(self, reference: Reference, offset: int = 0) -> dict[str, Any]:
        return self._owner(reference.list_id).place_of(reference, offset)

    def all_files(self) -> set[ExternalFile]:
        return {file for part in self._parts for file in part.all_files()}

    def are_remote(self) -> bool:
        return any(part.are_remote() for part in self._parts)

    def close(self) -> None:
        for part in self._parts:
            part.close()
