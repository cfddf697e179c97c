"""Inventory counts of HDF5 files: declared and unwritten rows, datasets that are not packed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.formats.sources.hdf5.files import datasets, is_hdf5_name, load_h5py, text_of
from seqrecord.formats.sources.hdf5.layouts import (
    AUXILIARY,
    Hdf5Episode,
    declared_rows,
    group_of,
    is_droid_metadata,
    mask_lists,
    whole_number,
)
from seqrecord.formats.sources.inventory import NOT_SELECTED, Unwritten
from seqrecord.in_place.files import first_line
from seqrecord.store.text import counted

_SHOWN = 3


@dataclass
class Hdf5Account:
    """Collect counts over all files during the scan."""

    is_chosen: bool = False  # by features=
    layouts: Counter[str] = field(default_factory=Counter)
    places: dict[str, str] = field(default_factory=dict)
    unwritten: Unwritten = field(default_factory=Unwritten)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    _videos: set[Path] = field(default_factory=set)
    left_out: Counter[tuple[str, str, bool]] = field(default_factory=Counter)

    def add_episode(self, episode: Hdf5Episode, group: str, selected: Container[str]) -> None:
        """Count an episode's datasets; `selected` are the names of its selected features."""
        self.layouts[episode.layout] += 1
        feature_of = {dataset.name: name for name, dataset in episode.stored.items()}
        for place, dataset in episode.datasets.items():
            pattern = _pattern(group, place)
            feature = feature_of.get(dataset.name)
            if feature in selected:
                assert feature is not None
                self.places.setdefault(feature, f"/{pattern}")
                if dataset.shape:
                    count = unwritten_rows(dataset)
                    self.unwritten.add(feature, count, dataset.shape[0], "row", _fill(dataset))
            elif feature in episode.optional:
                reason = f"observations of the next frame, {NOT_SELECTED}"
                group_pattern = f"{pattern.partition('next_obs/')[0]}next_obs/*"
                self._leave_out(group_pattern, reason, is_data=not self.is_chosen)
            elif feature is not None:
                self._leave_out(pattern, NOT_SELECTED)
            elif place in episode.left_out:
                self._leave_out(pattern, "not one value or text per frame", is_data=True)
            elif episode.is_mapped:
                self._leave_out(pattern, "not named by map=")
            elif place in AUXILIARY:
                self._leave_out(pattern, "lengths of encoded images")
        self._videos |= {*episode.videos.values()}
        for feature in episode.videos:
            if feature in selected:
                self.places.setdefault(feature, "*/recordings/MP4/*.mp4")
            else:
                reason = f"{NOT_SELECTED} or without_video="
                self._leave_out(f"feature {feature}", reason)

    def beside(self, metadata: Mapping[str, Any], place: Collection[str]) -> dict[str, Any]:
        """Return an episode's metadata without the keys of its `place`, which are counted."""
        for name in metadata.keys() & place:
            reason = "the metadata has the place of the episode under its name"
            self._leave_out(f"value {name}", reason, is_data=True)
        return {name: value for name, value in metadata.items() if name not in place}

    def add_file(self, file: Any, name: str, demos: Sequence[str]) -> None:
        """Count data outside of robomimic's demonstrations, and check that masks name existing
        ones."""
        self.files += 1
        if [*demos] == ["/"]:
            return
        counted_places = {*demos, "/mask", "/data"}
        for parent in ("/", "/data"):
            for child in file[parent]:
                place = f"{parent.rstrip('/')}/{child}"
                if place not in counted_places:
                    self._add_beside(file, parent, child, name)
        demo_names = {demo.rpartition("/")[2] for demo in demos}
        for mask, mask_names in mask_lists(file).items():
            if missing_names := sorted({*mask_names} - demo_names):
                shown = ", ".join(missing_names[:_SHOWN])
                self.notes.append(
                    f"{name}: {len(missing_names)} of {counted(len(mask_names), 'demonstration')} "
                    f"of mask/{mask} missing: {shown}"
                )

    def reason(self) -> str:
        """Return the evidence for the format: `2 files, 12 episodes of robomimic`."""
        episodes = [f"{counted(n, 'episode')} of {name}" for name, n in self.layouts.most_common()]
        return ", ".join([counted(self.files, "HDF5 file"), *episodes])

    def is_taken(self, path: Path) -> bool:
        """Return whether a file was read."""
        is_about = self.layouts["DROID"] > 0 and is_droid_metadata(path.name)
        return is_about or is_hdf5_name(path) or path in self._videos

    def _add_beside(self, file: Any, parent: str, child: str, name: str) -> None:
        """Count datasets outside of demonstrations."""
        group = group_of(file[parent], child)
        try:
            dataset_names = [*datasets(group)] if group is not None else [""]
        except SourceError as error:
            self.notes.append(f"{name}: cannot list /{child}: {first_line(error)}")
            return
        reason = "a group without actions" if parent == "/data" else "outside of demonstrations"
        for dataset_name in dataset_names:
            self._leave_out(_pattern(f"{parent}/{child}", dataset_name), reason, is_data=True)

    def _leave_out(self, pattern: str, reason: str, *, is_data: bool = False) -> None:
        self.left_out[(pattern, reason, is_data)] += 1


def check_total(file: Any, demos: Sequence[str]) -> None:
    """Compare `total` and `num_demos` of robomimic's `/data` with its demonstrations.

    Raises `SourceError` if they differ.
    """
    if [*demos] == ["/"]:
        return
    data = file["data"]
    groups = [group for name in data if (group := group_of(data, name)) is not None]
    rows = sum(map(_rows, groups))
    _check(data, "num_demos", [len(groups)], "demonstration")
    if whole_number(data, "total") != rows:
        # Reading raises for a demonstration whose rows differ from its own attribute.
        _check(data, "total", [rows, sum(declared_rows(demo) or 0 for demo in groups)], "frame")


def _check(data: Any, name: str, counts: Sequence[int], noun: str) -> None:
    declared = whole_number(data, name)
    if declared is not None and declared not in counts:
        raise SourceError(
            f"data.attrs[{name!r}] disagrees with the demonstrations; correct the attribute, or "
            "ignore it (--skip-bad-episodes)",
            expected=counted(declared, noun),
            got=f"{counted(counts[0], noun)} in the groups of /data",
        )


def _rows(demo: Any) -> int:
    """Return the rows of a demonstration's actions, or the declared number if they are external."""
    if "actions" in demo and not isinstance(
        demo.get("actions", getlink=True), load_h5py().ExternalLink
    ):
        return len(demo["actions"])
    return declared_rows(demo) or 0


def unwritten_rows(dataset: Any) -> int:
    """Count a dataset's rows with values in chunks, or a contiguous block, never allocated."""
    from h5py import h5d

    count = int(dataset.shape[0])
    if not dataset.size:
        return 0
    if dataset.chunks is None:
        is_contiguous = dataset.id.get_create_plist().get_layout() == h5d.CONTIGUOUS
        return count if is_contiguous and not dataset.id.get_storage_size() else 0
    grid = [-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    if dataset.id.get_num_chunks() == math.prod(grid):
        return 0
    chunks_by_row: Counter[int] = Counter()
    dataset.id.chunk_iter(lambda chunk: chunks_by_row.update([chunk.chunk_offset[0]]))
    length, chunks_per_row = dataset.chunks[0], math.prod(grid[1:])
    written = (
        min(length, count - start) for start, n in chunks_by_row.items() if n == chunks_per_row
    )
    return int(count - sum(rows for rows in written if rows > 0))


def _fill(dataset: Any) -> str:
    value = dataset.fillvalue
    text = text_of(value)
    if text is not None:
        return repr(text)
    return str(value.item() if isinstance(value, np.generic) else value)[:50]


def _pattern(group: str, place: str) -> str:
    """Return the path in the file with `*` for the episode's number: `data/demo_*/obs/x`."""
    prefix = re.sub(r"[0-9]+$", "*", group.strip("/"))
    return "/".join(filter(None, (prefix, place)))
