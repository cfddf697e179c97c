"""How the frames of each group are loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.reading.chunks import ChunkReader
from seqrecord.store.schema import FeatureSpec


@dataclass(frozen=True)
class GroupLoads:
    """How the frames of a group are loaded.

    Attributes:
        names: the features of the group's rows; results, with a frame transform.
        in_order: whether a decoder is kept open between loads, as for video.
        by_frame: whether loads of some frames read these alone, from a chunk store.
        is_direct: whether raw pages are read directly into rows.
        is_compact: whether the encoded chunk is smaller than its decoded frames.
    """

    names: frozenset[str]
    in_order: bool
    by_frame: bool
    is_direct: bool
    is_compact: bool

    @classmethod
    def of_groups(
        cls, reader: ChunkReader, results: Collection[str] | None, *, has_store: bool
    ) -> dict[int, GroupLoads]:
        """The loads of each requested group; `results` of a frame transform, `None` without."""
        specs: dict[int, list[FeatureSpec]] = defaultdict(list)
        for spec in reader.features.values():
            specs[spec.group].append(spec)
        loads = {}
        for group, features in specs.items():
            in_order = any(page_kind(spec).decodes_in_order for spec in features)
            if results is not None:  # it needs whole frames, of all groups
                loads[group] = cls(frozenset(results), in_order, False, False, False)
                continue
            names = frozenset(spec.name for spec in features)
            by_frame = has_store and all(map(_is_read_by_frame, features))
            # From remote storage, raw pages are read together with the other pages.
            is_direct = reader.is_local or by_frame or names == reader.raw[group].specs.keys()
            is_compact = all(page_kind(spec).scales or spec.stored is spec for spec in features)
            loads[group] = cls(names, in_order, by_frame, is_direct, is_compact)
        return loads


def _is_read_by_frame(spec: FeatureSpec) -> bool:
    """Whether loads of some frames read these alone; texts beside raw frames are short."""
    return page_kind(spec).in_slices or spec.value_kind.are_short
