"""Options of `lerobot-train` 0.6.1 about datasets, sampling and evaluation, and their effect here.

docs/from-lerobot.md has the same table. `make test-lerobot` checks that no field of LeRobot's
configurations is missing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from seqrecord.errors import ClipError

__all__ = ["IGNORED", "MODES", "OPTIONS", "REFUSED", "WORKS", "check_options"]

WORKS, IGNORED, REFUSED = "works", "ignored, with a WARNING", "refused"
MODES = ("class", "1", "mix")
_FILES, _ALL = (WORKS, WORKS, IGNORED), (WORKS, WORKS, WORKS)

OPTIONS: dict[str, tuple[str, str, str]] = {
    "dataset.repo_id": (WORKS, WORKS, "works, as a label"),
    "dataset.repo_type": (REFUSED, REFUSED, REFUSED),
    "dataset.root": _FILES,
    "dataset.revision": _FILES,
    "dataset.episodes": (WORKS, WORKS, "works, with numbers in the mix"),
    "dataset.image_transforms": _ALL,
    "dataset.use_imagenet_stats": _ALL,
    "dataset.video_backend": (IGNORED, IGNORED, IGNORED),
    "dataset.return_uint8": _ALL,
    "dataset.depth_output_unit": _ALL,
    "dataset.streaming": (REFUSED, REFUSED, REFUSED),
    "dataset.eval_split": _ALL,
    "eval_steps": _ALL,
    "max_eval_samples": _ALL,
    "env_eval_freq": _ALL,
    "eval": _ALL,
    "batch_size": _ALL,
    "num_workers": _ALL,
    "prefetch_factor": _ALL,
    "persistent_workers": _ALL,
    "dataloader_multiprocessing_context": _ALL,
    "seed": _ALL,
    "tolerance_s": (WORKS, WORKS, "works, for windows"),
    "policy.drop_n_last_frames": _ALL,
    "sample_weighting.type=uniform": _ALL,
    "sample_weighting.type=rabc": (WORKS, WORKS, REFUSED),
    "rename_map": _ALL,
    "resume": _ALL,
    "job.target": (REFUSED, REFUSED, REFUSED),
}
"""Effect of each option with `SEQRECORD_LEROBOT=class`, with `1`, and with a mix."""

_GIVEN: dict[str, Callable[[Any], Any]] = {
    "dataset.repo_type": lambda cfg: cfg.dataset.repo_type != "dataset",
    "dataset.root": lambda cfg: cfg.dataset.root is not None,
    "dataset.revision": lambda cfg: cfg.dataset.revision is not None,
    "dataset.video_backend": lambda _: _argument("dataset.video_backend") not in (None, "pyav"),
    "dataset.streaming": lambda cfg: cfg.dataset.streaming,
    "sample_weighting.type=rabc": lambda cfg: (
        cfg.sample_weighting is not None and cfg.sample_weighting.type == "rabc"
    ),
    "job.target": lambda cfg: cfg.job.is_remote,
}
"""Whether an option with an effect other than `WORKS` is given."""

_INSTEAD = {
    "dataset.repo_type": "a dataset; seqrecord reads files, and streams nothing by LeRobot",
    "dataset.root": "locations in the mix file",
    "dataset.revision": "revisions in the locations of the mix file: hf://datasets/ORG/NAME@REVISION",
    "dataset.video_backend": "pyav, with which seqrecord decodes",
    "dataset.streaming": "--dataset.streaming=false; seqrecord reads in order, and in place",
    "sample_weighting.type=rabc": "a single dataset: its table of progress has the numbers of the "
    "dataset's frames, and those of a mix are others",
    "job.target": "a local training; jobs of the Hub do not have seqrecord",
}


def check_options(cfg: Any, mode: str) -> None:
    """Refuse, or warn of, the options of a training in one of `MODES`.

    Raises `ClipError` for a refused option.
    """
    for name, is_given in _GIVEN.items():
        effect = OPTIONS[name][MODES.index(mode)]
        if effect in (IGNORED, REFUSED) and is_given(cfg):
            if effect == REFUSED:
                raise ClipError(f"--{name} does not go with seqrecord", expected=_INSTEAD[name])
            logging.warning(f"--{name} is ignored; expected: {_INSTEAD[name]}")


def _argument(name: str) -> str | None:
    """An option of the command line; LeRobot's default depends on installed packages."""
    words = [word for argument in sys.argv[1:] for word in argument.split("=", 1)]
    return next((value for key, value in pairwise(words) if key == f"--{name}"), None)
