"""The columns of batches beside features: episode, start, random parameters, padding, metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.clips.frames import ClipFrames, ClipKeys, SampleValues, WindowFrames
from seqrecord.clips.tables import IntArray
from seqrecord.engine.batches import ClipDraws
from seqrecord.errors import ClipError
from seqrecord.pipes.clip_episodes import ClipEpisodes, EpisodeMetadata
from seqrecord.pipes.clip_windows import FeatureWindows
from seqrecord.reading.array_specs import ArraySpec

if TYPE_CHECKING:
    from seqrecord.engine.calls import ClipFunctions
    from seqrecord.engine.crops import ClipCrops, DrawBatch

FRAMES_IS_PAD = "frames_is_pad"
"""Name of the mask of lists of frames that differ in length: true behind a shorter list."""

DIM_IS_PAD = "_dim_is_pad"
"""End of the names of masks: values of the last axis that the source lacks."""


class NoDraws:
    """No random parameters of clips; `draws.AugmentationSampler` has those of a `clip_transform`.

    Attributes:
        made: arrays of a frame in batches, before functions.
        crops: the crops of each camera.
        functions: functions called after the crops.
        is_any: whether there is anything to draw.
        is_random: whether the draws of a clip differ by epoch.
    """

    crops: tuple[ClipCrops, ...] = ()
    functions: ClipFunctions | None = None
    is_any = is_random = False

    def __init__(self, made: Mapping[str, ArraySpec]) -> None:
        self.made = made

    def draw(self, *_: Any, **_settings: Any) -> ClipDraws:
        """Draw parameters for clips; see `AugmentationSampler.draw`."""
        return ClipDraws()

    def sizes(self, draw_batch: DrawBatch) -> dict[str, tuple[int, int]]:  # noqa: ARG002
        """Height and width of features in a batch, if batches differ in size."""
        return {}

    def columns(
        self,
        drawn: ClipDraws,  # noqa: ARG002
        metadata: Sequence[EpisodeMetadata],  # noqa: ARG002
        episode: IntArray,  # noqa: ARG002
    ) -> dict[str, Any]:
        """Columns of the parameters."""
        return {}


@dataclass(frozen=True, eq=False)
class BatchColumns:
    """Makes the columns of batches beside features. Picklable.

    `span` is the number of frames from which a clip's frames are drawn. `metadata` has the names of
    metadata entries that become columns, and `constants` the columns that are the same for all
    clips.
    """

    episodes: ClipEpisodes
    windows: FeatureWindows
    draws: NoDraws
    span: int | None
    metadata: tuple[str, ...] = ()
    constants: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def of(
        self, clips: ClipKeys, frames: ClipFrames, drawn: ClipDraws
    ) -> tuple[dict[str, Any], int]:
        """The columns of n clips, each a list or a tensor, and the number of window times without a
        frame nearby.

        Columns: `episode`, a list of keys; `start`, int64[n]; random parameters;
        `<feature>_is_pad`, bool[n, T]; `<feature>_age`, int64[n, T]; `<feature>_dim_is_pad`,
        bool[n, size]; columns of the table of samples; and lists of metadata, `None` if an episode
        lacks an entry.

        Args:
            clips: the clips.
            frames: the frames of each feature, and the samples of the epoch.
            drawn: the random parameters.
        """
        metadata, windows, num_far = self.episodes.of(clips.episode), self.windows, 0
        steps, length = None, None
        if frames.draw is not None:
            steps = frames.draw(clips)
            if steps.num_frames is not None and len(metadata):  # equal in a batch
                length = int(steps.num_frames[0])
        columns: dict[str, Any] = {"episode": [one.key for one in metadata]}
        listed = self.episodes.frames(clips)
        columns["start"] = torch.from_numpy(self.episodes.starts(clips))
        if listed is not None:
            columns["frames"] = torch.from_numpy(listed)
            if self.episodes.lists_differ:
                columns[FRAMES_IS_PAD] = torch.from_numpy(listed < 0)
        elif self.span is not None:
            found = windows.selected.usual.find(clips, frames).frames
            columns["frames"] = torch.from_numpy(found[:, :length])
        columns |= self.draws.columns(drawn, metadata, clips.episode)
        by_window: dict[object, WindowFrames] = {}
        for name in dict.fromkeys((*windows.padded, *windows.distant)):
            key = frames.windows[name].key
            if key not in by_window:
                by_window[key] = frames.find(name, clips)
            of_window = by_window[key]
            if name in windows.padded:  # users may change the copies
                columns[f"{name}_is_pad"] = torch.from_numpy(of_window.is_pad[:, :length].copy())
                num_far += of_window.num_far
            if of_window.age is not None:
                columns[windows.distant[name]] = torch.from_numpy(of_window.age[:, :length].copy())
        if steps is not None and frames.samples is not None:
            if "dilation" in frames.samples.columns:
                columns["dilation"] = torch.from_numpy(steps.dilation)
            if "reverse" in frames.samples.columns:
                columns["reversed"] = torch.from_numpy(steps.is_reversed)
        for name, constant in self.constants.items():
            columns[name] = torch.from_numpy(np.tile(constant, (len(metadata), 1)))
        for name in self.metadata:  # users may change the copy
            columns[name] = [deepcopy(one.metadata[name]) for one in metadata]
        return {**columns, **_own(clips, frames.samples, columns)}, num_far


def _own(
    clips: ClipKeys, samples: SampleValues | None, others: Mapping[str, Any]
) -> dict[str, Any]:
    """The columns of the table of samples."""
    found: dict[str, Any] = {}
    if samples is None:
        return found
    for name in samples.own:
        if name in others:
            problem = "a column of samples has the name of another column of batches"
            raise ClipError(problem, expected="another name", got=name)
        values = samples.values(name, clips)
        found[name] = values if isinstance(values, list) else torch.from_numpy(values)
    return found
