"""A stand-in for `lerobot-train`: its options, and the part that sets the order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
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
        self.set(self.script, "make_train_eval_datasets", lambda cfg: (dataset, None))

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
        found, batches = list[int](), _batches(sampler, batch_size * ranks)
        for batch in islice(batches, stop - step):
            found += batch
        options = {"batch_size": batch_size, "num_processes": ranks, "step": stop}
        if folder is not None:
            theirs = {"cfg": cfg, "policy": None, "optimizer": None}
            self.script.save_checkpoint(checkpoint_dir=folder, **theirs, **options)
        return found


def _batches(sampler: Any, size: int) -> Iterator[list[int]]:
    """Items of each step, as from a loader that Accelerate has prepared: without the items that it
    repeats at the end of an epoch, and with the epoch that it sets, from 0 after each restart.
    """
    for iteration in count():
        sampler.set_epoch(iteration)
        items = iter(sampler)
        while batch := list(islice(items, size)):
            yield batch
