"""Random parameters of clips, and facts of episodes for the columns of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from seqrecord.clips.cameras import EpisodeCamera, known_cameras
from seqrecord.clips.excerpts import Excerpts
from seqrecord.clips.frames import ClipSteps
from seqrecord.clips.tables import ClipTable, IntArray
from seqrecord.clips.transforms import Camera, CropWindows, HorizontalFlip
from seqrecord.engine.batches import ClipRows
from seqrecord.engine.calls import ClipFunctions, Drawn
from seqrecord.engine.crops import ClipCrops, Crop
from seqrecord.errors import ClipError, located
from seqrecord.feature_kinds import partner_of
from seqrecord.pipes.distributed import say_once
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling.random_order import hash64, key_of
from seqrecord.text import repr_of

_MOST_EPISODES = 1 << 14  # of which facts are in memory, of those that came last
_SALT = 0x73746570  # the draws are not those of crops
_FRAMES = 0x66726D73  # … and the numbers of lists of frames not those of starts
_COPIES = 0x636F7079


class Facts(NamedTuple):
    """What batches need to know of an episode."""

    key: str
    number: int  # of its key; what is drawn depends on it, not on what else the dataset holds
    metadata: dict[str, Any]  # `None` where there is none


@dataclass(frozen=True, eq=False)
class ClipEpisodes:
    """The facts of episodes, with these entries of their metadata. Picklable.

    With `excerpts`, episodes are given by the numbers of these. If an epoch `repeats` clips, their
    copies have numbers of their own.
    """

    dataset: Dataset
    metadata: Sequence[str]
    excerpts: Excerpts | None
    repeats: bool
    _known: dict[int, Facts] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def of(self, episode: IntArray) -> list[Facts]:
        """Of the episodes in these rows, int64[n]."""
        return [self._known.get(row) or self._find(row) for row in self.rows(episode).tolist()]

    def rows(self, episode: IntArray) -> IntArray:
        """The rows of episodes in the index, int64[n]."""
        return episode if self.excerpts is None else self.excerpts.episode[episode]

    def key(self, row: int) -> str:
        """That of the episode in this row of the index."""
        return self.dataset.contents.index.key(row)

    def frames(self, episode: IntArray, start: IntArray) -> IntArray | None:
        """The frames of clips that are lists of these, int64[n, T]; of others `None`."""
        return None if self.excerpts is None else self.excerpts.frames_of(episode, start)

    def starts(self, episode: IntArray, start: IntArray) -> IntArray:
        """The first frames of clips as users know them, int64[n]."""
        frames = self.frames(episode, start)
        return start if frames is None else frames.min(axis=1)

    def numbers(
        self, episode: IntArray, start: IntArray, place: IntArray | None = None
    ) -> IntArray:
        """Numbers of clips by the rows of their episodes, their starts and their places in the
        epoch; int64[n] each."""
        if (frames := self.frames(episode, start)) is not None:
            start = np.zeros_like(start)
            for number, frame in enumerate(frames.T):
                drawn = hash64(key_of(_FRAMES, number), start + frame) >> np.uint64(8)
                start = drawn.astype(np.int64)
        numbers = np.array([facts.number for facts in self.of(episode)], np.int64) + start
        if self.repeats and place is not None:
            numbers += (hash64(key_of(_COPIES), place) >> np.uint64(8)).astype(np.int64)
        return numbers

    def _find(self, row: int) -> Facts:
        index, known = self.dataset.contents.index, self._known
        key, entries = index.key(row), index.episode_metadata(row) if self.metadata else {}
        digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
        metadata = {name: entries.get(name) for name in self.metadata}
        if len(known) > _MOST_EPISODES:  # another thread may clear what is looked for here
            known.clear()
        known[row] = facts = Facts(key, int.from_bytes(digest, "little"), metadata)
        return facts


@dataclass(frozen=True, eq=False)
class CameraDraws:
    """Crop windows of one camera's features, and the columns about them. Picklable.

    `known` are the cameras with intrinsics in the metadata. If frames vary, `sizes` has height and
    width of each episode's frames, int64[E, 2], 0 until they are known.
    """

    crops: ClipCrops
    facts: ClipEpisodes
    known: Sequence[EpisodeCamera]
    sizes: IntArray | None
    url: str

    def windows(self, seed: int, epoch: int, numbers: IntArray, episode: IntArray) -> CropWindows:
        """The windows of clips, by their numbers and the rows of their episodes; int64[n] each."""
        sizes, smallest = None if self.sizes is None else self.sizes[episode], dict[str, str]()
        if sizes is not None and len(sizes):
            row = int(episode[np.argmin((sizes - self.crops.size).min(axis=1))])
            smallest = self._place(row, min(self.crops.features))
        with located(ClipError, **smallest):
            return self.crops.windows(seed, epoch, numbers, sizes)

    def told(
        self, windows: CropWindows, cameras: Sequence[Any], episode: IntArray
    ) -> dict[str, torch.Tensor]:
        """The columns of clips, by the metadata `camera` and the rows of their episodes."""
        of = "" if self.crops.name is None else f"{self.crops.name}_"
        told = {f"{of}crop": torch.from_numpy(windows.crops)}
        if any(isinstance(step, HorizontalFlip) for step in self.crops.steps):
            told[f"{of}flipped"] = torch.from_numpy(windows.flipped)
        sizes = None if self.sizes is None else self.sizes[episode]
        for one in self.known:
            intrinsics = windows.intrinsics(one.intrinsics(cameras, sizes))
            told[one.column] = torch.from_numpy(intrinsics)
        return told

    def learn(self, episode: IntArray, start: IntArray, sources: Sequence[ClipRows[Any]]) -> None:
        """Note the sizes of these episodes' frames if frames vary.

        Raises `ClipError` if frames of one episode differ.
        """
        if (known := self.sizes) is None:
            return
        for source in sources:
            for name in self.crops.features.intersection(source.features):
                found = source.arena.sizes(name, source.rows.reshape(-1))
                found = found.reshape(*source.rows.shape, 2)
                for clip, row in enumerate(episode.tolist()):
                    if not known[row].any():
                        known[row] = found[clip, 0]
                    others = found[clip][(found[clip] != known[row]).any(axis=1)]
                    for height, width in others[:1].tolist():
                        raise ClipError(
                            "frames of an episode differ in size, and clips have one window",
                            **self._place(row, name),  # type: ignore[arg-type]
                            expected="{} x {} pixels, as of its other frames and features".format(
                                *known[row].tolist()
                            ),
                            got=f"{height} x {width} in the clip that starts at frame "
                            f"{start[clip]}",
                        )

    def _place(self, row: int, feature: str) -> dict[str, str]:
        return {"file": self.url, "episode": self.facts.key(row), "feature": feature}


class ClipDraws:
    """Random parameters of a `clip_transform` for clips. Picklable if its functions are.

    Raises `ClipError` for steps that do not fit the features.

    Args:
        cameras: crops and flips, of each camera.
        arrays: of the features of a frame, after `frame_transform`.
        facts: of episodes, with the metadata `camera`.
        episode: the row of one of the episodes, int64[1]; whether it has intrinsics decides for
            all.

    Attributes:
        crops: of each camera.
        made: `arrays` after the crops.
        functions: called with the clips after these.
    """

    functions: ClipFunctions | None = None

    def __init__(
        self,
        cameras: Sequence[Camera],
        arrays: Mapping[str, ArraySpec],
        dataset: Dataset,
        facts: ClipEpisodes,
        episode: IntArray,
    ) -> None:
        self._facts, self.made = facts, arrays
        kinds = {name: spec.kind for name, spec in dataset.features.items()}
        self.crops = tuple(ClipCrops.of(camera, arrays, kinds) for camera in cameras)
        for crops in self.crops:
            self.made = crops.specs(self.made)
        sizes: dict[str, Any] = {  # of stored and resized frames
            name: (dataset.features[name].stored.shape[:2], size)
            for name, size in dataset.contents.sizes.items()
            if name in arrays
        }
        camera = facts.of(episode)[0].metadata["camera"] if cameras or sizes else None
        self._cameras = []
        for crops in self.crops:
            may_share, count = crops.name is None, len(dataset.contents.episode_table)
            known = known_cameras(crops.features, crops.frame, sizes, camera, may_share=may_share)
            frames = np.zeros((count, 2), np.int64) if None in crops.frame else None
            self._cameras.append(CameraDraws(crops, facts, known, frames, dataset.url))
        alone = sizes.keys() - {name for crops in self.crops for name in crops.features}
        self._resized = known_cameras(alone, (), sizes, camera, may_share=False) if alone else []
        if camera is not None and not any((*(one.known for one in self._cameras), self._resized)):
            say_once(
                f"{dataset.url}: no intrinsics: the metadata `camera` is not "
                '{"fx": …, "fy": …, "cx": …, "cy": …} of frames of this size, nor a dict of such '
                f"by feature: {repr_of(camera, 200)}"
            )
        _warn_of_pairs(self.crops, dataset.url)

    def with_functions(self, functions: ClipFunctions) -> ClipDraws:
        """The same, with functions called for the clips."""
        found = copy(self)
        found.functions = functions
        return found

    @property
    def is_any(self) -> bool:
        """Whether there is anything to draw."""
        return bool(self.crops) or self.functions is not None

    def draw(
        self,
        seed: int,
        epoch: int,
        episode: IntArray,
        start: IntArray,
        sources: Sequence[ClipRows[Any]] = (),
        place: IntArray | None = None,
        *,
        sequences: ClipTable | None = None,
    ) -> Drawn:
        """For clips by the rows of their episodes and first frames, int64[n] each.

        That depends on seed, epoch, the episode's key and the first frame alone: that of the clip,
        or of the first clip of its row in `sequences`, so that all clips of a row get the same. If
        an epoch repeats clips, it depends on their `place` in it too.
        If frames vary in size, windows depend on the sizes of the episodes' frames: `sources` have
        some of them, unless they are known already.
        """
        if not self.is_any:
            return Drawn()
        first = start if sequences is None else sequences.first_starts(episode, start)
        numbers, calls = self._facts.numbers(episode, first, place), None
        episode, start = self._facts.rows(episode), self._facts.starts(episode, start)
        parts: dict[str, tuple[ClipCrops, CropWindows]] = {}
        for camera in self._cameras:
            camera.learn(episode, start, sources)
            windows = camera.windows(seed, epoch, numbers, episode)
            parts |= dict.fromkeys(sorted(camera.crops.features), (camera.crops, windows))
        if self.functions is not None:
            calls = self.functions.calls(seed, epoch, numbers, episode, start)
        return Drawn(Crop(parts) if parts else None, calls)

    def told(self, drawn: Drawn, facts: Sequence[Facts], episode: IntArray) -> dict[str, Any]:
        """Columns: `crop`, int64[n, 4]; `flipped`, bool[n], if there are flips; and `intrinsics`,
        float64[n, 4], NaN for episodes without; of a camera with a name `<name>_crop` and so on.

        If cameras share a window and the metadata has each, there are `<feature>_intrinsics`, and
        so there are of resized features without steps.
        """
        told: dict[str, torch.Tensor] = {}
        if drawn.crop is None and not self._resized:
            return told
        cameras, episode = [one.metadata.get("camera") for one in facts], self._facts.rows(episode)
        for one in self._resized:
            told[one.column] = torch.from_numpy(one.intrinsics(cameras))
        for camera in self._cameras if drawn.crop is not None else ():
            assert drawn.crop is not None
            _, windows = drawn.crop.parts[min(camera.crops.features)]
            told |= camera.told(windows, cameras, episode)
        return told


def _warn_of_pairs(cameras: Sequence[ClipCrops], url: str) -> None:
    """Log the stereo pairs that are flipped."""
    flipped = {
        name
        for crops in cameras
        if any(isinstance(step, HorizontalFlip) and step.p for step in crops.steps)
        for name in crops.features
    }
    for left in sorted(flipped):
        if (right := partner_of(left, flipped)) is not None:
            say_once(
                f"{url}: HorizontalFlip mirrors {left} and {right}: in flipped clips the left "
                "camera is the right one, so exchange the two where they are flipped"
            )


@dataclass(frozen=True, eq=False)
class SelectedSteps:
    """The steps of a dataset's clips. Picklable.

    Args:
        dilations: of which one is drawn for each clip.
        reverse: the probability that a clip's frames come in reverse.
        whole: for each of the dilations the clips, with stride 1, that lack nothing with it. They
            are not needed of a single one.
    """

    dilations: Sequence[int]
    reverse: float
    whole: Sequence[ClipTable]
    facts: ClipEpisodes

    def draw(
        self,
        seed: int,
        epoch: int,
        episode: IntArray,
        start: IntArray,
        place: IntArray | None = None,
    ) -> ClipSteps:
        """For clips by the rows of their episodes, starts and places in the epoch, int64[n] each.

        They depend on seed, epoch, the episode's key and the start alone, and on which dilations
        there are with which the clip lacks nothing: each of these is equally likely.
        """
        numbers = self.facts.numbers(episode, start, place)
        shares = [
            (hash64(key_of(_SALT, seed, epoch, i), numbers) >> np.uint64(11)) * 2.0**-53
            for i in range(2)
        ]
        dilation = np.full(len(start), self.dilations[0])
        if len(self.dilations) > 1:
            fits = np.stack([table.has(episode, start) for table in self.whole], axis=1)
            count = np.cumsum(fits, axis=1)
            chosen = (shares[0] * count[:, -1]).astype(np.int64)
            dilation = np.array(self.dilations)[np.argmax(count > chosen[:, None], axis=1)]
        return ClipSteps(dilation, shares[1] < self.reverse)

    def told(self, steps: ClipSteps) -> dict[str, torch.Tensor]:
        """What batches tell of it: `dilation`, int64[n], and `reversed`, bool[n], where drawn."""
        told = {}
        if len(self.dilations) > 1:
            told["dilation"] = torch.from_numpy(steps.dilation)
        if self.reverse:
            told["reversed"] = torch.from_numpy(steps.is_reversed)
        return told
