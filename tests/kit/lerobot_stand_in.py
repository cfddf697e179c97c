"""A stand-in for LeRobot's metadata classes, made from `meta/info.json` without lerobot."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

_DEPTH = "is_depth_map"


class Metadata:
    """Stands in for `LeRobotDatasetMetadata`."""

    def __init__(
        self,
        repo_id: str,
        root: Path | None = None,
        revision: str | None = None,
        force_cache_sync: bool = False,
        token: str | None = None,
    ) -> None:
        del force_cache_sync, token
        home = Path(os.environ.get("HF_LEROBOT_HOME", ""))
        self.repo_id = repo_id
        self.root = home / repo_id if root is None else Path(root)
        self.revision = revision or "v3.0"
        info = json.loads((self.root / "meta/info.json").read_text())
        self.features: dict[str, Any] = {
            name: {**one, "shape": tuple(one["shape"])} for name, one in info["features"].items()
        }
        self.fps, self.total_frames = info["fps"], info["total_frames"]
        self.total_episodes, self.robot_type = info["total_episodes"], info.get("robot_type")
        stats = self.root / "meta/stats.json"
        self.stats: dict[str, dict[str, Any]] = {
            name: {key: np.array(value) for key, value in one.items()}
            for name, one in (json.loads(stats.read_text()) if stats.exists() else {}).items()
        }
        rows = [pq.read_table(path) for path in sorted(self.root.glob("meta/episodes/*/*"))]
        self.episodes = pa.concat_tables(rows).to_pydict() if rows else {}
        kinds = ("image", "video")
        self.camera_keys = [n for n, one in self.features.items() if one["dtype"] in kinds]
        self.depth_keys = [
            name for name in self.camera_keys if (self.features[name].get("info") or {}).get(_DEPTH)
        ]

    def rescale_depth_stats(self, output_unit: str) -> None:
        """Nothing to rescale."""

    def filter_episodes(self, predicate: Any, candidates: list[int] | None = None) -> list[int]:
        """Episodes for which `predicate` is true; rows have the number only."""
        every = range(self.total_episodes) if candidates is None else candidates
        return [number for number in every if predicate({"episode_index": number})]


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Whether two items are equal to the last bit."""
    return one.keys() == two.keys() and all(
        torch.equal(value, two[name]) if name != "task" else value == two[name]
        for name, value in one.items()
    )


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the module `lerobot.datasets.lerobot_dataset`."""
    name = "lerobot.datasets.lerobot_dataset"
    module = ModuleType(name)
    module.LeRobotDatasetMetadata = Metadata  # type: ignore[attr-defined]
    for parent in ("lerobot", "lerobot.datasets"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, module)
    constants = ModuleType("lerobot.utils.constants")
    constants.HF_LEROBOT_HUB_CACHE = "the cache"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lerobot.utils", ModuleType("lerobot.utils"))
    monkeypatch.setitem(sys.modules, constants.__name__, constants)
