"""The order of a training, and how far it is, in a file beside each checkpoint.

LeRobot computes epoch and offset of a resumed training from its step. The order of `PlannedSampler`
also depends on how many ranks, workers and clips of a batch it was made for.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from seqrecord.errors import StateError
from seqrecord.lerobot import PlannedSampler

__all__ = ["Progress", "ResumedSampler", "has_order"]

_NAME = "seqrecord_order.json"


@dataclass(frozen=True)
class Progress:
    """What the order is made for, and after `step` its position: epoch and item."""

    batch_size: int
    workers: int
    ranks: int
    step: int = 0
    epoch: int = 0
    start_index: int = 0
    mix: str = ""

    @classmethod
    def begun(cls, batch_size: int, workers: int, ranks: int, mix: str = "") -> Progress:
        """Of a training that begins; `mix` identifies sources and shares of a mix."""
        return cls(batch_size, workers, ranks, mix=mix)

    @classmethod
    def read(cls, checkpoint: Path) -> Progress:
        """What `write` has written; `StateError` for a file that is not so."""
        path = Path(checkpoint) / _NAME
        try:
            saved = json.loads(path.read_text())
            mix = saved.pop("mix", "") if isinstance(saved, dict) else None
            if isinstance(mix, str) and all(type(n) is int and n >= 0 for n in saved.values()):
                return cls(**saved, mix=mix)
        except (OSError, TypeError, ValueError) as error:
            raise StateError("not the order of a training", file=str(path)) from error
        raise StateError("not the order of a training", file=str(path), got=saved)

    def check_mix(self, mix: str, checkpoint: Path) -> None:
        """Raise `StateError` for a checkpoint of another mix, or of a training without one."""
        if mix != self.mix:
            raise StateError(
                "the checkpoint is of another mix: other sources, episodes, features or weights",
                file=str(Path(checkpoint) / _NAME),
                expected=self.mix or "a training without a mix",
                got=mix or "no mix; set SEQRECORD_LEROBOT_MIX",
            )

    def write(self, checkpoint: Path) -> None:
        """Beside the checkpoint."""
        (Path(checkpoint) / _NAME).write_text(json.dumps(asdict(self), indent=1))

    def after(self, step: int, num_items: int, batch_size: int, ranks: int) -> Progress:
        """That at a later step, since when each rank has taken a batch a step.

        Accelerate gives each rank equally many batches of an epoch, the last ones again.
        """

        def steps(items: int) -> int:
            return ceil(ceil(items / batch_size) / ranks)

        done, rest = step - self.step, steps(num_items - self.start_index)
        if done < rest:
            start_index = self.start_index + done * batch_size * ranks
            return replace(self, step=step, start_index=start_index)
        epochs, done = divmod(done - rest, steps(num_items))
        start_index = done * batch_size * ranks
        return replace(self, step=step, epoch=self.epoch + 1 + epochs, start_index=start_index)

    def warn_of_others(self, batch_size: int, workers: int, ranks: int) -> None:
        """Log what a resumed training costs that has other numbers."""
        if (batch_size, workers, ranks) != (self.batch_size, self.workers, self.ranks):
            logging.warning(
                "the order goes on as it was, but items are read one by one, which is slow: it was "
                f"made for --batch_size={self.batch_size} --num_workers={self.workers} and "
                f"{self.ranks} processes; now they are {batch_size}, {workers} and {ranks}"
            )


class ResumedSampler(PlannedSampler):
    """A `PlannedSampler` in the order of a training, which begins where that was."""

    def __init__(self, dataset: Any, progress: Progress, **options: Any) -> None:
        numbers = {"batch_size": progress.batch_size, "num_workers": progress.workers}
        super().__init__(dataset, **numbers, num_replicas=progress.ranks, **options)
        self._progress = progress

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: each iteration is the next epoch.

        Accelerate calls it as an iteration begins, with the number of iterations since this process
        has started, which is not the epoch of a resumed training.
        """
        del epoch

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To the position that was saved, whatever LeRobot has computed from the step."""
        del state
        saved = self._progress
        super().load_state_dict({"epoch": saved.epoch, "start_index": saved.start_index})

    def progress_at(self, step: int, batch_size: int, ranks: int) -> Progress:
        """The progress at a step of this training."""
        return self._progress.after(step, len(self), batch_size, ranks)


def has_order(checkpoint: Path) -> bool:
    """Whether a checkpoint is of a training in this order."""
    return (Path(checkpoint) / _NAME).exists()
