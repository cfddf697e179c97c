"""Dtypes and shapes beside data that does not know its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.tartanair.compare.recordings import Feature, Recordings

__all__ = ["load_features", "save_features"]

_FILE = "features.json"


def save_features(recordings: Recordings, folder: Path) -> None:
    features = {name: asdict(feature) for name, feature in recordings.features.items()}
    (folder / _FILE).write_text(json.dumps(features))


def load_features(folder: Path, names: Sequence[str] | None = None) -> dict[str, Feature]:
    """These features, or all of them, in the order in which frames have them."""
    saved = json.loads((folder / _FILE).read_text())
    return {
        name: Feature(saved[name]["dtype"], tuple(saved[name]["shape"]))
        for name in (saved if names is None else names)
    }
