"""Dilation, direction and frames of the clips of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import ClipKeys, ClipSteps
from seqrecord.loader.clips.samples import Samples
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of


@dataclass(frozen=True, eq=False)
class StepSampler:
    """Dilation, direction and frames of clips: from the table of samples, or drawn. Picklable.

    Args:
        dilation: dilation of clips, unless the table has their own.
        clip_len: greatest number of frames in a clip.
        span: number of frames to draw a clip's frames from; `None` if clips have no gaps.
    """

    dilation: int
    clip_len: int
    span: int | None

    def draw(
        self,
        seed: int,
        epoch: int,
        clips: ClipKeys,
        *,
        samples: Samples,
        frames_at: Callable[[IntArray], IntArray] | None = None,
    ) -> ClipSteps:
        """The steps of n clips.

        All sets of frames are equally likely; they depend on seed, epoch, sample and the number of
        frames. `frames_at` returns each clip's number of frames by its place, if it is drawn
        for each batch.
        """
        dilation = samples.dilation(clips, self.dilation)
        is_reversed = np.zeros(len(clips.start), np.bool_)
        if "reverse" in samples.columns:
            is_reversed = np.asarray(samples.values("reverse", clips))
        num_frames = None if frames_at is None else frames_at(clips.place)
        if num_frames is None and self.span is None:
            return ClipSteps(dilation, is_reversed)
        key = key_of(Purpose.CLIP_STEPS, seed, epoch)
        positions = self._positions(key, clips.sample, is_reversed, num_frames)
        return ClipSteps(dilation, is_reversed, positions, num_frames)

    def _positions(
        self,
        key: int,
        numbers: IntArray,
        is_reversed: npt.NDArray[np.bool_],
        count: IntArray | None,
    ) -> IntArray:
        """The positions of clips by their samples, and their counts of frames, int64[n] each."""
        if count is None:
            count = np.full(len(numbers), self.clip_len)
        place = np.minimum(np.arange(self.clip_len), count[:, None] - 1)
        place = np.where(is_reversed[:, None], count[:, None] - 1 - place, place)
        if self.span is None:
            return place
        places = np.arange(self.span)
        samples = hash64(key_of(Purpose.STEPS_OF_SAMPLE, key), numbers)
        hashes = hash64(key, (samples[:, None] + places.astype(np.uint64)).view(np.int64))
        rank = np.argsort(np.argsort(hashes, axis=1, kind="stable"), axis=1, kind="stable")
        is_left = rank >= count[:, None]
        order = np.argsort(is_left, axis=1, kind="stable")[:, : self.clip_len]
        drawn_positions: IntArray = np.take_along_axis(order, place, axis=1)
        return drawn_positions
