"""Which stage holds an epoch up. `stats()` and `bench` ask here, so that both say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["STAGES", "Stage", "bottleneck", "bottleneck_of_steps"]

Stage = Literal["consumer", "fetch", "decode", "gather", "device"]

STAGES: Mapping[Stage, str] = {
    "consumer": "the consumer: batches wait for it",
    "fetch": "reading: more is asked for than the storage delivers",
    "decode": "decoding: a faster codec, or more threads, would help",
    "gather": "copying clips into batches: memory bandwidth",
    "device": "copying frames to the device: the bus",
}
"""What `stats()` says of each."""

_LITTLE = 0.05  # a share of a step that is not worth a change


def bottleneck(stats: Mapping[str, Any]) -> Stage:
    """The stage that the others wait for, from the seconds that an engine has counted."""
    if stats.get("waiting_for_batches_seconds", 0.0) < stats.get(
        "waiting_for_consumer_seconds", 0.0
    ):
        return "consumer"
    return _slowest(stats)


def bottleneck_of_steps(
    stats: Mapping[str, Any], *, waiting: float, copying: float, consuming: float
) -> Stage:
    """The same where the consumer was watched, which tells more of it than the engine can.

    `waiting`, `copying` and `consuming` are seconds of a mean step that the consumer waits for
    data, that it waits for the copy to the device, and that it works.
    """
    if max(waiting, copying) < _LITTLE * (waiting + copying + consuming or 1.0):
        return "consumer"
    return "device" if copying > waiting else _slowest(stats)


def _slowest(stats: Mapping[str, Any]) -> Stage:
    """Of the loader's own stages."""
    seconds: dict[Stage, float] = {
        stage: stats.get(f"{stage}_seconds", 0.0) for stage in ("decode", "fetch", "gather")
    }
    if stats.get("device_seconds", 0.0) > max(seconds.values()):
        return "device"
    # Several threads load, and their seconds add up: what counts is how long batches waited for
    # them.
    loading, gathering = stats.get("waiting_for_loads_seconds", 0.0), seconds.pop("gather")
    if gathering >= loading and gathering > 0:
        return "gather"
    return max(seconds, key=seconds.__getitem__)
