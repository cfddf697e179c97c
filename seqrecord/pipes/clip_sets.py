"""Features of clips that are read together, by clip number; small raw ones may stay in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.kept import KeptFrames
from seqrecord.reading.reader import SeqRecordReader

__all__ = ["Alike", "is_small", "sets_of"]

_SMALL = (
    64 << 10
)  # bytes of a frame: to copy a larger one costs more than what reading it alone does


@dataclass(frozen=True)
class Alike:
    """Features of which clips have the same frames, and a dataset that has them.

    `kept` are those that stay in memory: all of them, or none. Where they are small, each frame is
    read once and copied to all clips that have it; larger ones are read into the first of these.
    """

    names: tuple[str, ...]
    dataset: SeqRecordReader
    is_small: bool
    kept: Mapping[str, KeptFrames]


def is_small(dataset: SeqRecordReader, feature: str) -> bool:
    """Whether a feature's frames are raw, small, all there, and on a local disk."""
    reader, spec = dataset.chunk_reader(), dataset.features[feature]
    has_all = not len(dataset.index.group_of(feature).gaps)
    is_raw = feature in reader.raw[spec.group].specs
    return reader.is_local and is_raw and has_all and spec.nbytes <= _SMALL


def sets_of(selection: ClipSelection, memory_limit: int) -> list[Alike]:
    """The features of clips in sets that are read together.

    Frames that are kept take at most `memory_limit` bytes: those of the smallest features.
    """
    arrays, dataset = selection.arrays, selection.dataset
    sets = selection.clip_frames.alike(arrays)
    if selection.frame_transform is not None:  # it needs whole frames
        return [Alike(names, dataset, False, {}) for names in sets]
    small = {name for name in dataset.features if is_small(dataset, name)}
    parts = {name: (dataset.index.group_of(name), dataset.features[name]) for name in small}
    sizes = {name: KeptFrames.bytes_of(*part) for name, part in parts.items()}
    kept: dict[str, KeptFrames] = {}
    for name in sorted(small, key=sizes.__getitem__):
        memory_limit -= sizes[name]
        if memory_limit < 0:
            break
        raw = dataset.chunk_reader().raw[dataset.features[name].group]
        kept[name] = KeptFrames(raw, *parts[name])
    found: list[Alike] = []
    for names in sets:
        by_kind: dict[tuple[bool, bool], list[str]] = {}
        for name in names:
            by_kind.setdefault((name in small, name in kept), []).append(name)
        for (fits, stays), some in by_kind.items():
            stored = dataset.select([name for name in some if arrays[name].mask_of is None])
            stay = {name: kept[name] for name in some} if stays else {}
            found.append(Alike(tuple(some), stored, fits, stay))
    return found
