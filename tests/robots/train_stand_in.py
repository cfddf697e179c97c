"""A stand-in for `lerobot-train`: its options, and the part that sets the order."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

DATASET: dict[str, Any] = {
    "repo_id": "robots",
    "root": None,
    "streaming": False,
    "use_imagenet_stats": True,
    "eval_split": 0.0,
    "episodes": None,
    "revision": None,
    "repo_type": "dataset",
    "video_backend": "pyav",
    "depth_output_unit": "mm",
}


def options_of(**dataset: Any) -> dict[str, Any]:
    """Options of a training that this plug-in reads."""
    job = SimpleNamespace(is_remote=False)
    dataset = {**DATASET, **dataset}
    return {"dataset": SimpleNamespace(**dataset), "sample_weighting": None, "job": job}


class Training:
    """The part of `lerobot-train` that sets the order: steps, checkpoints, resuming."""

    def __init__(self, lerobot: Any, dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = lerobot.training
        self.state = pytest.importorskip("accelerate.state").PartialState(cpu=True)
        self.set = monkeypatch.setattr
        self.set(self.script, "make_train_eval_datasets", lambda _: (dataset, None))

    def run(
        self, folder: Path | None, step: int, stop: int, batch_size: int, workers: int, ranks: int
    ) -> list[int]:
        """Items of all ranks up to step `stop`; then saves a checkpoint if a folder is given."""
        self.set(self.state, "num_processes", ranks)
        cfg = SimpleNamespace(batch_size=batch_size, num_workers=workers, resume=step > 0)
        cfg.checkpoint_path, cfg.trainable_config = folder, SimpleNamespace()
        vars(cfg).update(options_of())
        self.script.make_train_eval_datasets(cfg)
        sampler = self.script.EpisodeAwareSampler(seed=3)
        if cfg.resume:
            sampler.load_state_dict({"epoch": 9, "start_index": 9})  # LeRobot's own result
        found, items = list[int](), iter(sampler)
        for _ in range(step, stop):
            taken = list(islice(items, batch_size * ranks))
            if len(taken) < batch_size * ranks:  # Accelerate repeats other items
                items = iter(sampler)
            found += taken
        options = {"batch_size": batch_size, "num_processes": ranks, "step": stop}
        if folder is not None:
            theirs = {"cfg": cfg, "policy": None, "optimizer": None}
            self.script.save_checkpoint(checkpoint_dir=folder, **theirs, **options)
        return found
