"""Advice of `bench`: the bottleneck, and the first setting to change."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqrecord.loader.engine.stats import Stage, bottleneck
from seqrecord.store.codecs.images import IMAGE
from seqrecord.store.codecs.presets import preset_chain
from seqrecord.store.processes.machine import local_ranks, usable_memory
from seqrecord.store.reading.summary import FeatureSummary, feature_summary
from seqrecord.store.text import percent
from seqrecord.store.units import format_size

if TYPE_CHECKING:
    from seqrecord.loader.pipes.loaders import SeqRecordIterableDataset

_FEW_BATCHES = 10
_BURSTS = 3  # ratio of mean and median wait that shows bursts
_GROWTH = 4  # the greatest advised size of a dataset, relative to its present size
_MUCH = 0.5  # the greatest advised part of a memory
_MAIN = 0.25  # the least part of the bytes for which another codec pays


@dataclass(frozen=True)
class Sizes:
    """Sizes that limit advice, in bytes."""

    features: Mapping[str, FeatureSummary]  # the loader's; the specs have the stored names
    stored: int  # of the dataset
    disk: float  # free beside the dataset; infinite if it is remote
    memory: int  # that `memory_limit` may have; of the device, if the loader has one

    @classmethod
    def of(cls, stream: SeqRecordIterableDataset) -> Sizes:
        """The sizes of a loader's dataset and machine."""
        import torch  # takes seconds

        dataset, device = stream.dataset, stream.options.device
        index, names = dataset.contents.index, stream.options.rename or {}
        stored_names = {new: old for old, new in names.items()}
        found = {name: feature_summary(index, index.schema[name]) for name in dataset.features}
        memory = usable_memory() // local_ranks()
        if device is not None and torch.device(device).type == "cuda":
            memory = torch.cuda.get_device_properties(device).total_memory
        place = Path(dataset.url)
        return cls(
            {
                name: replace(one, spec=replace(one.spec, name=stored_names.get(name, name)))
                for name, one in found.items()
            },
            sum(int(index.lengths(name).sum()) for name in index.schema),
            shutil.disk_usage(place).free if place.exists() else float("inf"),
            int(_MUCH * memory),
        )

    def with_codec(self, feature: FeatureSummary) -> int | None:
        """The greatest size of the dataset with a lossless codec for a feature."""
        return feature.raw_bytes and self.stored - feature.stored_bytes + feature.raw_bytes

    def fits(self, nbytes: int) -> bool:
        """Whether a new copy of the dataset may have this size."""
        return nbytes <= min(_GROWTH * self.stored, self.disk)


def advise(
    stats: Mapping[str, Any],
    *,
    waiting: float,
    median_wait: float,
    copying: float,
    consuming: float,
    seconds: float,
    threads: int,
    cores: int,
    is_local: bool,
    sizes: Sizes,
) -> tuple[str, ...]:
    """Describe the bottleneck and its remedy, and other findings; one line each.

    No remedy needs more memory or disk than there is, or a dataset of over 4 times its size.

    Args:
        stats: counters of the loader; see `SeqRecordPipe.stats`.
        waiting, copying, consuming: seconds of a mean step: waiting for data, waiting for the copy
            to the device, working.
        median_wait: like `waiting`, of the median step.
        seconds: duration of the iteration.
        threads: threads of the loader.
        cores: usable cores of the process.
        is_local: whether the dataset is on a local disk.
        sizes: limits of remedies.
    """
    step = waiting + copying + consuming or 1.0
    lines = []
    stage = bottleneck(stats, waiting=waiting, copying=copying, consuming=consuming)
    if stage == "consumer":
        lines.append(
            f"the consumer is the bottleneck: it works {percent(consuming / step)} of the time. "
            "No change of the loader will help."
        )
    elif stage == "device":
        lines.append(
            "copying to the device is the bottleneck: the consumer waits for it or for data "
            f"{percent((waiting + copying) / step)} of the time. Copy fewer bytes: fewer "
            "features, smaller frames, integers converted to floats on the device."
        )
    else:
        lines.append(
            f"the consumer waits for data {percent(waiting / step)} of the time. "
            + _recommendation(stage, stats, seconds, threads, cores, is_local, sizes)
        )
        limit = 2 * stats.get("memory_limit", 0)
        is_throttled = stats.get("loads_throttled") and limit <= sizes.memory
        if waiting > _BURSTS * median_wait and is_throttled:
            lines.append(
                "most steps wait little and a few wait long: increase `memory_limit` to "
                f"{format_size(limit)}, so that the loader runs further ahead."
            )
    if stats.get("batches", 0) < _FEW_BATCHES:
        lines.append("too few batches for reliable figures: increase `max_batches`.")
    return tuple(lines)


def _recommendation(
    stage: Stage,
    stats: Mapping[str, Any],
    seconds: float,
    threads: int,
    cores: int,
    is_local: bool,
    sizes: Sizes,
) -> str:
    fetching, decoding = stats.get("fetch_seconds", 0.0), stats.get("decode_seconds", 0.0)
    if stage == "gather":
        gathering = stats.get("gather_seconds", 0.0)
        return (
            f"Copying clips into batches is the bottleneck: {percent(gathering / seconds)} of the "
            "time, limited by memory bandwidth. Copy less: fewer features, smaller frames "
            "(`frame_transform`), a larger stride, shorter clips."
        )
    working = fetching + decoding or 1.0
    if stage == "decode":
        more = f"more threads ({threads} of {cores} cores are in use)"
        less = "fewer features"
        # `frame_transform` is not timed by feature, nor are raw features that are read in place.
        found = {n: s for n, s in stats.get("decode_seconds_by_feature", {}).items() if s}
        name = max(found, key=found.__getitem__, default="")
        total = sum(found.values())
        most = f", {percent(found[name] / total)} of that for {name}" if len(found) > 1 else ""
        return (
            f"Decoding is the bottleneck: {percent(decoding / working)} of the loading threads' "
            f"time{most}. {_faster_codec(name, sizes)}smaller frames, or use "
            f"{more if threads < cores else less}."
        )
    rate = stats.get("bytes_read", 0) / max(seconds, 1e-9) / 1e6
    size = format_size(sizes.stored)
    nearer = "" if is_local else f"Copy the dataset ({size}) to a local disk, "
    if sizes.fits(sizes.stored):
        written = f"write it ({size}) with larger chunks (`--chunk-frames`){_stronger_codec(sizes)}"
        nearer += f"{written}, or "
    advice = f"{nearer}read fewer features."
    return (
        f"Reading is the bottleneck: {percent(fetching / working)} of the loading threads' time, "
        f"{rate:,.0f} MB/s. {advice[0].upper()}{advice[1:]}"
    )


def _faster_codec(name: str, sizes: Sizes) -> str:
    """Advice to write a feature with a faster codec, if there is one and its size is bearable."""
    feature = sizes.features.get(name)
    if feature is None or (size := sizes.with_codec(feature)) is None:
        return "Write "
    spec, now = feature.spec, f"instead of {format_size(sizes.stored)}"
    if spec.codec in ((), preset_chain("fast", spec.dtype, spec.shape)):
        return "Write "
    if not sizes.fits(size):
        return f"A lossless codec for {name} takes up to {format_size(size)} {now}: write "
    option = f"`seqrecord write --codec {spec.name}=fast`"  # one for all does not apply to video
    return f"Write with a faster codec ({option}: up to {format_size(size)} {now}) or "


def _stronger_codec(sizes: Sizes) -> str:
    """Advice to write the largest feature with a stronger codec, unless it is image or video."""
    read = sum(each.stored_bytes for each in sizes.features.values())
    for each in sorted(sizes.features.values(), key=lambda one: -one.stored_bytes):
        spec, chain = each.spec, preset_chain("small", each.spec.dtype, each.spec.shape)
        is_encoded = bool(spec.codec) and spec.codec[0]["id"] in ("video", IMAGE)
        if each.stored_bytes >= _MAIN * read and not is_encoded and spec.codec != chain:
            return f" or a stronger codec (`--codec {spec.name}=small`)"
    return ""
