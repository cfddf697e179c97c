"""How a source is packed into a destination: codecs, copied chunks, external files."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from seqrecord.formats.converting.convert_jobs import frame_cost
from seqrecord.formats.converting.described_source import DescribedSource
from seqrecord.in_place.external_lists import put_copied, put_lists
from seqrecord.store.feature_kinds import unknown_pose_kinds
from seqrecord.store.format.inventory import Inventory
from seqrecord.store.format.manifest import CopiedFiles
from seqrecord.store.originals.protocol import Source, StoredSource
from seqrecord.store.schema import Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.writing.destination import Destination
from seqrecord.store.writing.stored_schema import (
    Codecs,
    FeatureInfo,
    check_passthrough,
    is_passthrough,
    stored_schema,
)

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class Packing:
    """A source as it is packed into one destination.

    Attributes:
        source: the source, which copies features that keep their codecs.
        schema: the features of the dataset, with codecs and groups.
        frame_cost: relative cost of packing a frame, see `frame_cost`.
        inventory: the account of the original, with notes of this packing.
        statistics: stored ones of a source that is a dataset.
        inventories: replace `inventory` in the dataset, if the source is a dataset.
        copied: lists of the files whose values are copied.
        externals: lists and numbers of external files, see `VideoGroup`.
    """

    source: Source
    schema: Schema
    frame_cost: int
    inventory: Inventory
    statistics: Statistics | None = None
    inventories: Sequence[Inventory] | None = None
    copied: CopiedFiles | None = None
    externals: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        original: DescribedSource,
        target: Destination,
        codecs: Codecs | None,
        chunk_frames: int | None,
    ) -> Packing:
        """Choose codecs, and write the lists of external files. See `convert`."""
        if hasattr(original.source, "stored"):
            packing = cls._of_dataset(original, target, codecs, chunk_frames)
        else:
            packing = cls._of_frames(original, target, codecs)
        inventory = original.inventory
        for note in _unknown_units(original.schema, original.described, target.schema):
            _logger.warning("%s: %s", target.storage.url, note)
            inventory = inventory.extended(notes=[note])
        inventory = inventory.extended(notes=unknown_pose_kinds(packing.schema))
        packing = replace(packing, inventory=inventory)
        if not original.in_place:
            return packing
        files = cast("Any", packing.source).external_files()
        externals = put_lists(target.storage, files)
        return replace(packing, externals=externals, copied=put_copied(target, packing.source))

    @classmethod
    def _of_dataset(
        cls,
        original: DescribedSource,
        target: Destination,
        codecs: Codecs | None,
        chunk_frames: int | None,
    ) -> Packing:
        dataset, described = cast("StoredSource", original.source), original.described
        statistics, inventories = dataset.statistics, dataset.inventories
        schema = _schema_of(dataset.stored, original.schema, codecs, target.schema, described)
        changed_intrinsics = {} if original.resizing is None else original.resizing.intrinsics
        fitted_source = dataset.fitted(schema, chunk_frames, changed_intrinsics)
        cost = frame_cost(fitted_source.schema(), copied=fitted_source.undecoded_features)
        return cls(
            *(fitted_source, schema, cost, original.inventory, statistics, inventories),
            copied=fitted_source.copy_lists(target.storage),
        )

    @classmethod
    def _of_frames(
        cls, original: DescribedSource, target: Destination, codecs: Codecs | None
    ) -> Packing:
        in_place = original.in_place
        cost = frame_cost(original.schema, in_place=in_place)
        schema = stored_schema(original.schema, codecs, target.schema, original.described)
        check_passthrough(original.schema, schema, in_place=in_place)
        return cls(original.source, schema, cost, original.inventory)


def _unknown_units(
    original: Schema, described: Mapping[str, Any], target_schema: Schema | None
) -> Iterator[str]:
    """Notes on units that only the source or only the existing dataset has."""
    for name, target_spec in target_schema.active.items() if target_schema is not None else ():
        unit = described.get(name, {}).get("unit", original[name].unit)
        if (unit is None) != (target_spec.unit is None):
            yield (
                f"feature {name}: unit {unit or 'unknown'} in the source, "
                f"{target_spec.unit or 'unknown'} in the dataset, whose unit stays"
            )


def _schema_of(
    dataset: Schema,
    schema: Schema,
    codecs: Codecs | None,
    target_schema: Schema | None,
    described: FeatureInfo,
) -> Schema:
    """Schema of the new dataset if the source is a dataset.

    `dataset` has the source's stored features, `schema` the same features as the source yields
    them. Codecs and groups are the source's by default.
    """
    if target_schema is not None or isinstance(codecs, str):
        return stored_schema(schema, codecs, target_schema, described)
    source_codecs = {
        name: spec.codec
        for name, spec in dataset.items()
        if spec.shape == schema[name].shape or not is_passthrough(spec, spec)
    }
    if codecs is not None:
        return stored_schema(schema, {**source_codecs, **codecs}, None, described)
    groups = {
        name: {**described.get(name, {}), "group": spec.group} for name, spec in dataset.items()
    }
    return stored_schema(schema, source_codecs, None, groups)
