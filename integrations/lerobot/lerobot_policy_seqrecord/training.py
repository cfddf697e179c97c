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
from lerobot_policy_seqrecord.mixed import MixDatasets
from lerobot_policy_seqrecord.options import check_options
from lerobot_policy_seqrecord.progress import Progress, ResumedSampler, has_order
from seqrecord.errors import SeqRecordError

__all__ = ["DEPLOY", "MIX", "VARIABLE", "installed", "registered"]

VARIABLE = "SEQRECORD_LEROBOT"
MIX, DEPLOY = f"{VARIABLE}_MIX", f"{VARIABLE}_DEPLOY"
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
    """Replace classes in the training command as the variables request; return whether any was.

    LeRobot logs errors of plug-ins and trains on without them, so an error ends the process here.
    """
    mix, training = os.environ.get(MIX) or None, _training()
    wanted = os.environ.get(VARIABLE) or ("0" if mix is None else "1")
    is_training = training is not None or Path(sys.argv[0]).stem == "lerobot-train"
    if not is_training or (wanted == "0" and mix is None):
        return False
    if mix is not None and wanted != "1":
        sys.exit(f"{MIX}={mix} is for seqrecord's order: expected {VARIABLE}=1, got {wanted!r}")
    if wanted not in ("1", "class"):
        sys.exit(f"{VARIABLE} is {wanted!r}: expected 1, class or 0")
    if training is None:
        sys.exit(f"{VARIABLE}={wanted}: this lerobot-train is not the module {_SCRIPT}")
    try:
        _replace(training, with_order=wanted == "1", mix=mix)
    except Exception as error:
        sys.exit(f"{VARIABLE}={wanted}: {error}")
    return True


def _training() -> ModuleType | None:
    """The module of `lerobot-train`, which `python -m` and `accelerate launch -m` call __main__."""
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == _SCRIPT:
        return main
    return sys.modules.get(_SCRIPT)


def _replace(training: Any, *, with_order: bool, mix: str | None) -> None:
    from lerobot.datasets import factory

    mode = "mix" if mix is not None else "1" if with_order else "class"
    check(factory, training, mode)
    from seqrecord.lerobot import LeRobotDataset

    if mix is None:
        factory.LeRobotDataset = LeRobotDataset
    else:
        datasets_of = MixDatasets(factory, mix, os.environ.get(DEPLOY) or None)
        training.make_train_eval_datasets = datasets_of.make
    make, save = training.make_train_eval_datasets, training.save_checkpoint
    made: dict[str, Any] = {}
    where = f"{VARIABLE}={mode}" if mix is None else f"{MIX}={mix}"

    def check_given(cfg: Any) -> None:
        try:
            check_options(cfg, mode)
        except SeqRecordError as error:
            sys.exit(f"{where}: {error}")

    def make_train_eval_datasets(cfg: Any) -> Any:
        check_given(cfg)
        try:
            datasets = make(cfg)
        except SeqRecordError as error:
            if mix is None:
                raise
            sys.exit(f"{where}: {error}")
        made.update(cfg=cfg, dataset=datasets[0])
        if cfg.resume and not with_order:
            _check_order(cfg.checkpoint_path, with_order)
        logging.info(f"{VARIABLE if mix is None else MIX}: read by {datasets[0]!r}")
        return datasets

    def sampler(*_: Any, seed: int, drop_n_last_frames: int = 0, **__: Any) -> ResumedSampler:
        """Theirs is given episodes and positions, which the dataset has."""
        from accelerate import PartialState

        cfg, ranks = made["cfg"], PartialState().num_processes
        mixed = made["dataset"].order_identity if mix is not None else ""
        progress = Progress.begun(cfg.batch_size, cfg.num_workers, ranks, mixed)
        if cfg.resume:
            _check_order(cfg.checkpoint_path, with_order)
            progress = Progress.read(cfg.checkpoint_path)
            progress.check_mix(mixed, cfg.checkpoint_path)
            progress.warn_of_others(cfg.batch_size, cfg.num_workers, ranks)
        options = {"seed": seed, "drop_last_frames": drop_n_last_frames}
        made["sampler"] = ResumedSampler(made["dataset"], progress, **options)
        return made["sampler"]

    def save_checkpoint(checkpoint_dir: Path, step: int, *args: Any, **options: Any) -> None:
        save(checkpoint_dir, step, *args, **options)
        numbers = step, options["batch_size"], options["num_processes"]
        made["sampler"].progress_at(*numbers).write(checkpoint_dir)

    training.make_train_eval_datasets = make_train_eval_datasets
    training.submit_to_hf = check_given
    if with_order:
        training.EpisodeAwareSampler = sampler
        training.save_checkpoint = save_checkpoint


def _check_order(checkpoint: Path, with_order: bool) -> None:
    """End the process where a checkpoint is of a training in another order."""
    if has_order(checkpoint) != with_order:
        wanted = "class" if with_order else "1"
        sys.exit(
            f"{VARIABLE}={os.environ[VARIABLE]}: {checkpoint} is of a training in another order; "
            f"resume it with {VARIABLE}={wanted}"
        )
