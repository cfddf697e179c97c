"""Splits that originals declare."""

from __future__ import annotations

from collections.abc import Collection

from seqrecord.store.format.manifest import SPLIT_NAME

TRAIN = "train"
"""LeRobot and TFDS put all episodes into this split if nobody divides them."""


def stored_split(name: str | None, all_names: Collection[str | None]) -> str | None:
    """Return an episode's declared split if datasets store it, else `None`.

    `all_names` are the splits of all episodes. `train` alone is the writers' default: stored, it
    would keep `seqrecord split` from dividing the episodes. A name that no split of a dataset may
    have is not stored either.
    """
    if name is None or {*all_names} == {TRAIN} or not SPLIT_NAME.fullmatch(name):
        return None
    return name
