"""How far apart a clip's frames are, and whether they come in reverse: drawn for each clip."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from seqrecord.clip_frames import ClipSteps
from seqrecord.clips import ClipTable, IntArray
from seqrecord.pipes.identity import ClipNumbers
from seqrecord.sampling.random_order import hash64, key_of

__all__ = ["SelectedSteps"]

_SALT = 0x73746570  # the draws are not those of crops


class SelectedSteps:
    """The steps of a dataset's clips. Picklable.

    Args:
        dilations: of which one is drawn for each clip.
        reverse: the probability that a clip's frames come in reverse.
        whole: for each of the dilations the clips, with stride 1, that lack nothing with it. They
            are not needed of a single one.
    """

    def __init__(
        self,
        dilations: Sequence[int],
        reverse: float,
        whole: Sequence[ClipTable],
        numbers: ClipNumbers,
    ) -> None:
        self._dilations = np.array(dilations)
        self._reverse = reverse
        self._whole = whole
        self._numbers = numbers
        self.names = self._names()
        """What batches say of them."""

    def draw(self, seed: int, epoch: int, episode: IntArray, start: IntArray) -> ClipSteps:
        """For clips by the rows of their episodes and their starts, int64[n] each.

        They depend on seed, epoch, the episode's key and the start alone, and on which dilations
        there are with which the clip lacks nothing: each of these is equally likely.
        """
        numbers = self._numbers.of(episode, start)
        shares = [
            (hash64(key_of(_SALT, seed, epoch, i), numbers) >> np.uint64(11)) * 2.0**-53
            for i in range(2)
        ]
        dilation = np.full(len(start), self._dilations[0])
        if len(self._dilations) > 1:
            fits = np.stack([table.has(episode, start) for table in self._whole], axis=1)
            count = np.cumsum(fits, axis=1)
            chosen = (shares[0] * count[:, -1]).astype(np.int64)
            dilation = self._dilations[np.argmax(count > chosen[:, None], axis=1)]
        return ClipSteps(dilation, shares[1] < self._reverse)

    def said(self, steps: ClipSteps) -> dict[str, torch.Tensor]:
        """`dilation`, int64[n], and `reversed`, bool[n], where they are drawn."""
        columns = {"dilation": steps.dilation, "reversed": steps.is_reversed}
        return {name: torch.from_numpy(columns[name]) for name in self.names}

    @property
    def tensors(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Dtype and shape for a clip of what `said` gives, by name."""
        every = {"dilation": (torch.int64, ()), "reversed": (torch.bool, ())}
        return {name: every[name] for name in self.names}

    def _names(self) -> tuple[str, ...]:
        drawn = {"dilation": len(self._dilations) > 1, "reversed": self._reverse > 0}
        return tuple(name for name, is_drawn in drawn.items() if is_drawn)
