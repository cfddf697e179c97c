"""What a conversion takes from its source: features, episodes and inventory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from seqrecord.errors import ClipError, FormatError, SchemaError, SourceError
from seqrecord.formats.converting.convert_jobs import OTHER_FEATURES, BadEpisode
from seqrecord.formats.converting.gaps import split_at_gaps
from seqrecord.formats.converting.source_resizing import SourceResizing
from seqrecord.formats.converting.source_video import notes_of_kept
from seqrecord.in_place.boundary import boundary
from seqrecord.in_place.file_types import explained
from seqrecord.in_place.references import reference_source
from seqrecord.store.feature_kinds import LABEL_KINDS, check_kinds_and_units
from seqrecord.store.format.inventory import Inventory
from seqrecord.store.format.text import check_key, encode_metadata, metadata_entries
from seqrecord.store.originals.inventory import inventory_of, palette_note
from seqrecord.store.originals.protocol import EpisodeInfo, Source
from seqrecord.store.reading.resizing import Sizes
from seqrecord.store.schema import Schema
from seqrecord.store.writing.edit_files import check_split_name
from seqrecord.store.writing.stored_schema import check_fps


@dataclass(frozen=True)
class DescribedSource:
    """A source, and what a conversion takes from it. Methods return changed copies.

    Attributes:
        source: the original.
        schema: features as they will be stored, before codecs are chosen.
        episodes: all episodes to pack.
        inventory: the source's account of its original, with notes of the conversion.
        described: kinds and units instead of the source's, by feature.
        in_place: whether the dataset refers to files of the original.
        resizing: changes the size of frames, if any does.
        bad: episodes that cannot be packed, and are left out.
    """

    source: Source
    schema: Schema
    episodes: Sequence[EpisodeInfo]
    inventory: Inventory
    described: Mapping[str, Any]
    in_place: bool = False
    resizing: SourceResizing | None = None
    bad: Sequence[BadEpisode] = ()

    @classmethod
    def read(
        cls,
        source: Source,
        kinds: Mapping[str, str | None] | None,
        units: Mapping[str, str | None] | None,
        *,
        in_place: bool,
    ) -> DescribedSource:
        """Read the features, episodes and inventory of a source. See `convert`."""
        if in_place:
            source = reference_source(source)
        with explained(), _naming_features(), boundary():
            schema = source.schema()
            episodes = source.episodes()
            inventory = inventory_of(source)
        described: Mapping[str, Any] = check_kinds_and_units(schema, kinds, units)
        _check_palettes(source, described)
        features = (
            replace(feature, **described.get(feature.name, {})) for feature in inventory.features
        )
        notes = [note for note in inventory.notes if not _is_answered(note, described)]
        notes += notes_of_kept(schema)
        inventory = replace(inventory, features=tuple(features), notes=tuple(notes))
        return cls(source, schema, episodes, inventory, described, in_place)

    @property
    def described_schema(self) -> Schema:
        """The features with their kinds and units in the dataset."""
        specs = self.schema.values()
        return Schema([replace(spec, **self.described.get(spec.name, {})) for spec in specs])

    @property
    def splits(self) -> dict[str, str]:
        """Names of splits, by episode."""
        return {info.key: info.split for info in self.episodes if info.split is not None}

    def resized(self, sizes: Sizes | None) -> DescribedSource:
        """Resize frames before they are stored, see `SourceResizing`; `None`: no frames."""
        resizing = SourceResizing.of(self.described_schema, sizes)
        if resizing is None:
            return self
        if self.in_place:
            raise SourceError(
                "frames of originals read in place stay as they are; the loaders resize them "
                "(resize=), or `seqrecord write --resize` stores resized ones"
            )
        return replace(
            self,
            schema=resizing.schema,
            episodes=[
                replace(info, metadata=resizing.metadata(info.metadata)) for info in self.episodes
            ],
            inventory=self.inventory.extended(notes=resizing.notes),
            resizing=resizing,
        )

    def split_at_gaps(self, seconds: float | None, *, skip_bad: bool) -> DescribedSource:
        """Cut episodes at gaps in time, see `split_at_gaps`; `None`: nowhere.

        `skip_bad` moves episodes without readable timestamps to `bad`.
        """
        if seconds is None:
            return self
        if self.in_place:
            raise SourceError(
                "originals read in place cannot be split at gaps; `seqrecord write` splits them"
            )
        source, note, bad = split_at_gaps(
            self.source, self.described_schema, self.episodes, seconds, skip_bad=skip_bad
        )
        bad_keys = {episode.key for episode in bad}
        return replace(
            self,
            source=source,
            episodes=[info for info in source.episodes() if info.key not in bad_keys],
            inventory=self.inventory.extended(notes=[note]),
            bad=bad,
        )

    def with_fps(self, fps: float | None) -> DescribedSource:
        """Give a rate to the episodes whose rate the source lacks."""
        if fps is None:
            return self
        infos = self.episodes
        return replace(
            self, episodes=[info if info.fps else replace(info, fps=fps) for info in infos]
        )

    def refuse_left_out(self) -> None:
        """Raise `SourceError` if data of the original is left out."""
        left_out, inventory = self.inventory.left_out_data, self.inventory
        if not left_out:
            return
        shown = "; ".join(map(str, left_out[:5])) + ("; …" if len(left_out) > 5 else "")
        raise SourceError(
            f"original of format {inventory.format} has data that is not packed; move it out of "
            "the original, choose features (--features), or leave out strict (--strict)",
            expected="every file and field packed",
            got=shown,
        )

    def checked(self, *, skip_bad: bool) -> DescribedSource:
        """Check keys, metadata, rates and splits; `skip_bad` moves wrong episodes to `bad`."""
        if not self.episodes and not self.bad:
            raise SourceError("the source has no episodes")
        seen: set[str] = set()
        good: list[EpisodeInfo] = []
        bad = [*self.bad]
        for info in self.episodes:
            try:
                check_key(info.key)
                encode_metadata(metadata_entries(info.metadata))
                check_fps(info.fps)
                if info.split is not None:
                    check_split_name(info.split)
            except (FormatError, SchemaError, ClipError) as error:
                refusal = SourceError(error.message, **{"episode": info.key, **error.context()})
                if not skip_bad:
                    raise refusal from error
                bad.append(BadEpisode(info, refusal))
                continue
            if info.key in seen:
                raise SourceError("two episodes of one key", episode=info.key)
            seen.add(info.key)
            good.append(info)
        if not good:
            raise SourceError(f"no episode can be packed; the first failed with: {bad[0].error}")
        return replace(self, episodes=good, bad=bad)


def _check_palettes(source: Source, described: Mapping[str, Any]) -> None:
    """Raise `SourceError` for a kind of masks or labels of a palette's colours, or the reverse."""
    palettes: Mapping[str, bool] = getattr(source, "palettes", {})
    for name, are_indices in palettes.items():
        kind = described.get(name, {}).get("kind")
        if kind is not None and (kind in LABEL_KINDS) != are_indices:
            raise SourceError(
                "the kind is of other values than those read: "
                f"{palette_note(name, are_indices=are_indices)}; rename its files",
                feature=name,
                expected=f"{' or '.join(LABEL_KINDS) if are_indices else 'image'}",
                got=kind,
            )


@contextmanager
def _naming_features() -> Iterator[None]:
    """Add the remedy to an error about a single feature."""
    try:
        yield
    except SourceError as error:
        if error.feature is not None and "--features" not in error.message:
            error.message = f"{error.message}; {OTHER_FEATURES}"
            error.args = (error.message,)
        raise


def _is_answered(note: str, described: Mapping[str, Any]) -> bool:
    """Whether `described` has the unit that a note of the inventory asks for or assumes."""
    return any(
        (note.startswith(f"feature {name}: ") and "without a unit" in note)
        or note.startswith(f"unit of {name} assumed")
        for name, properties in described.items()
        if properties.get("unit") is not None
    )
