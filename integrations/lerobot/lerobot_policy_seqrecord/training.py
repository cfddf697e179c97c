"""Puts our dataset and our sampler where `lerobot-train` looks theirs up."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from lerobot_policy_seqrecord.contract import check
from seqrecord.errors import SeqRecordError

__all__ = ["VARIABLE", "installed", "registered"]

VARIABLE = "SEQRECORD_LEROBOT"
_SCRIPT = "lerobot.scripts.lerobot_train"


def registered() -> bool:
    """Name the module that reads our format, if this LeRobot asks for such; say whether it does.

    Nothing of LeRobot is imported where it does not.
    """
    lerobot = importlib.util.find_spec("lerobot")
    folders = [] if lerobot is None else lerobot.submodule_search_locations or []
    if not any((Path(folder) / "datasets/storage.py").exists() for folder in folders):
        return False
    storage: Any = importlib.import_module("lerobot.datasets.storage")
    storage.register_dataset_reader("seqrecord", "lerobot_policy_seqrecord.reader")
    return True


def installed() -> bool:
    """Replace what the variable asks for, in the training command; say whether that was done.

    LeRobot logs errors of plug-ins and trains on without them, so an error ends the process here.
    """
    wanted, training = os.environ.get(VARIABLE, "0"), _training()
    if wanted in ("", "0") or training is None:
        return False
    if wanted not in ("1", "class"):
        sys.exit(f"{VARIABLE} is {wanted!r}: expected 1, class or 0")
    try:
        _replace(training, with_order=wanted == "1")
    except (SeqRecordError, ImportError) as error:
        sys.exit(f"{VARIABLE}={wanted}: {error}")
    return True


def _training() -> ModuleType | None:
    """The module of `lerobot-train`, which `python -m` and `accelerate launch -m` call __main__."""
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == _SCRIPT:
        return main
    return sys.modules.get(_SCRIPT)


def _replace(training: Any, *, with_order: bool) -> None:
    from lerobot.datasets import factory

    check(factory, training)
    from seqrecord.lerobot import LeRobotDataset, PlannedSampler

    theirs = training.make_train_eval_datasets
    last: dict[str, Any] = {}

    def make_train_eval_datasets(cfg: Any) -> Any:
        made = theirs(cfg)
        last.update(dataset=made[0], batch_size=cfg.batch_size, num_workers=cfg.num_workers)
        logging.info(f"{VARIABLE}: read by {made[0]!r}")
        return made

    def sampler(*_: Any, seed: int, drop_n_last_frames: int = 0, **__: Any) -> PlannedSampler:
        """Theirs is told episodes and positions, which the dataset knows."""
        from accelerate import PartialState

        ranks = PartialState().num_processes
        return PlannedSampler(
            **last, seed=seed, drop_last_frames=drop_n_last_frames, num_replicas=ranks
        )

    factory.LeRobotDataset = LeRobotDataset
    training.make_train_eval_datasets = make_train_eval_datasets
    if with_order:
        training.EpisodeAwareSampler = sampler
