"""What to change first, in plain words, from what an iteration has measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqrecord.engine.stats import Stage, bottleneck
from seqrecord.text import percent

__all__ = ["advise"]

_FEW_BATCHES = 10
_BURSTS = 3  # times the median wait that the mean wait is


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
) -> tuple[str, ...]:
    """One line for the bottleneck, and one for whatever else is worth knowing.

    Args:
        stats: of the pipe, see `SeqRecordPipe.stats`.
        waiting, copying, consuming: seconds of a mean step that the consumer waits for data, that
            it waits for the copy to the device, and that it works.
        median_wait: as `waiting`, of the median step.
        seconds: of the iteration.
        threads: that the pipe may use.
        cores: that the process may use.
    """
    step = waiting + copying + consuming or 1.0
    lines = []
    stage = bottleneck(stats, waiting=waiting, copying=copying, consuming=consuming)
    if stage == "consumer":
        lines.append(
            f"the consumer is the bottleneck: it works {percent(consuming / step)} of the time, "
            "and the loader waits for it. Nothing to change here."
        )
    elif stage == "device":
        lines.append(
            "copying to the device is the bottleneck: the consumer waits for it, or for data, "
            f"{percent((waiting + copying) / step)} of the time. Move fewer bytes: fewer "
            "features, smaller frames, integers that become floats on the device."
        )
    else:
        lines.append(
            f"the consumer waits for data {percent(waiting / step)} of the time. "
            + _what_helps(stage, stats, seconds, threads, cores)
        )
        if waiting > _BURSTS * median_wait:
            lines.append(
                "most steps wait little and a few wait long: a larger `memory_limit` lets the "
                "loader run further ahead."
            )
    if stats.get("batches", 0) < _FEW_BATCHES:
        lines.append("too few batches for a reliable figure: run more of them.")
    return tuple(lines)


def _what_helps(
    stage: Stage, stats: Mapping[str, Any], seconds: float, threads: int, cores: int
) -> str:
    fetching, decoding = stats.get("fetch_seconds", 0.0), stats.get("decode_seconds", 0.0)
    if stage == "gather":
        gathering = stats.get("gather_seconds", 0.0)
        return (
            f"Copying clips into batches is the bottleneck: {percent(gathering / seconds)} of the "
            "time, at the speed of memory. Copy less: fewer features, smaller frames "
            "(`frame_transform`), a larger stride, shorter clips."
        )
    working = fetching + decoding or 1.0
    if stage == "decode":
        more = f"more threads (there are {cores} cores and {threads} in use)"
        less = "fewer features"
        return (
            f"Decoding is the bottleneck: {percent(decoding / working)} of the loading threads' "
            f"time{_most_of_it(stats)}. Pack with a faster codec (`seqrecord write --codec fast`), "
            f"or use {more if threads < cores else less}."
        )
    rate = stats.get("bytes_read", 0) / max(seconds, 1e-9) / 1e6
    return (
        f"Reading is the bottleneck: {percent(fetching / working)} of the loading threads' time, "
        f"{rate:,.0f} MB/s. Put the dataset on a local disk, pack it with larger chunks "
        "(`--chunk-frames`) or a stronger codec (`--codec small`), or ask for fewer features."
    )


def _most_of_it(stats: Mapping[str, Any]) -> str:
    """The feature that takes the most to decode, if there are several."""
    seconds = stats.get("decode_seconds_by_feature", {})
    if len(seconds) < 2 or not any(seconds.values()):
        return ""
    name = max(seconds, key=seconds.__getitem__)
    return f", {percent(seconds[name] / sum(seconds.values()))} of that for {name}"
