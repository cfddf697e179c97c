"""What is drawn for the clips of a selection, and what batches tell of clips beside features."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from seqrecord.clips.excerpts import Excerpts
from seqrecord.clips.frames import ClipSteps
from seqrecord.clips.tables import ClipTable, IntArray
from seqrecord.clips.transforms import Camera, CropWindows, FloatArray, HorizontalFlip
from seqrecord.engine.batches import ClipRows
from seqrecord.engine.calls import ClipFunctions, Drawn
from seqrecord.engine.crops import ClipCrops, Crop
from seqrecord.errors import ClipError
from seqrecord.feature_kinds import partner_of
from seqrecord.pipes.distributed import say_once
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling.random_order import hash64, key_of
from seqrecord.text import repr_of

_MOST_EPISODES = 1 << 14  # of which facts are in memory, of those that came last
_CAMERA = ("fx", "fy", "cx", "cy")
_SALT = 0x73746570  # the draws are not those of crops
_FRAMES = 0x66726D73  # … and the numbers of lists of frames not those of starts
_COPIES = 0x636F7079


class Facts(NamedTuple):
    """What batches need to know of an episode."""

    key: str
    number: int  # of its key; what is drawn depends on it, not on what else the dataset holds
    metadata: dict[str, Any]  # `None` where there is none


class ClipEpisodes:
    """The facts of episodes, with these entries of their metadata. Picklable.

    With `excerpts`, episodes are given by the numbers of these. If an epoch `repeats` clips, their
    copies have numbers of their own.
    """

    def __init__(
        self,
        dataset: Dataset,
        metadata: Sequence[str],
        excerpts: Excerpts | None = None,
        *,
        repeats: bool = False,
    ) -> None:
        self._dataset, self.metadata, self._excerpts = dataset, metadata, excerpts
        self._repeats = repeats
        self._known: dict[int, Facts] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def of_excerpts(self, excerpts: Excerpts | None) -> ClipEpisodes:
        """The same with other excerpts."""
        return ClipEpisodes(self._dataset, self.metadata, excerpts, repeats=self._repeats)

    def of(self, episode: IntArray) -> list[Facts]:
        """Of the episodes in these rows, int64[n]."""
        return [self._known.get(row) or self._find(row) for row in self.rows(episode).tolist()]

    def rows(self, episode: IntArray) -> IntArray:
        """The rows of episodes in the index, int64[n]."""
        return episode if self._excerpts is None else self._excerpts.episode[episode]

    def key(self, row: int) -> str:
        """That of the episode in this row of the index."""
        return self._dataset.contents.index.key(row)

    def frames(self, episode: IntArray, start: IntArray) -> IntArray | None:
        """The frames of clips that are lists of these, int64[n, T]; of others `None`."""
        return None if self._excerpts is None else self._excerpts.frames_of(episode, start)

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
        if self._repeats and place is not None:
            numbers += (hash64(key_of(_COPIES), place) >> np.uint64(8)).astype(np.int64)
        return numbers

    def _find(self, row: int) -> Facts:
        index, known = self._dataset.contents.index, self._known
        key, entries = index.key(row), index.episode_metadata(row) if self.metadata else {}
        digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
        metadata = {name: entries.get(name) for name in self.metadata}
        if len(known) > _MOST_EPISODES:  # another thread may clear what is looked for here
            known.clear()
        known[row] = facts = Facts(key, int.from_bytes(digest, "little"), metadata)
        return facts


class ClipDraws:
    """What a `clip_transform` makes of a dataset's clips. Picklable if its functions are.

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
        self._facts, self._url, self.made = facts, dataset.url, arrays
        kinds = {name: spec.kind for name, spec in dataset.features.items()}
        self.crops = tuple(ClipCrops.of(camera, arrays, kinds) for camera in cameras)
        for crops in self.crops:
            self.made = crops.specs(self.made)
        count = len(dataset.contents.episode_table)
        self._frames: dict[int, IntArray] = {  # of cameras whose frames vary: sizes, by episode
            number: np.zeros((count, 2), np.int64)
            for number, crops in enumerate(self.crops)
            if None in crops.frame
        }
        specs, names = dataset.features, dataset.contents.sizes
        sizes: dict[str, Any] = {
            name: (specs[name].stored.shape[:2], names[name]) for name in arrays if name in names
        }
        camera = facts.of(episode)[0].metadata["camera"] if cameras or sizes else None
        self._known = [_known(_cameras_of(crops, sizes), camera) for crops in self.crops]
        cropped = {name for crops in self.crops for name in crops.features}
        alone = [_Camera(name, *size) for name, size in sizes.items() if name not in cropped]
        self._resized = [one for one in alone if _known([one], camera)]
        if camera is not None and not any((*self._known, self._resized)):
            say_once(
                f"{self._url}: no intrinsics: the metadata `camera` is not "
                '{"fx": …, "fy": …, "cx": …, "cy": …} of frames of this size, nor a dict of such '
                f"by feature: {repr_of(camera, 200)}"
            )
        self._warn_of_pairs()

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
        Where frames vary in size, windows depend on that of the episode's: `sources` have some of
        them, unless they are known already.
        """
        if not self.is_any:
            return Drawn()
        first = start if sequences is None else sequences.first_starts(episode, start)
        numbers, crop, calls = self._facts.numbers(episode, first, place), None, None
        episode, start = self._facts.rows(episode), self._facts.starts(episode, start)
        parts: dict[str, tuple[ClipCrops, CropWindows]] = {}
        for number, crops in enumerate(self.crops):
            self._learn(number, episode, start, sources)
            sizes = self._sizes(number, episode)
            with self._naming(episode, sizes, crops):
                windows = crops.windows(seed, epoch, numbers, sizes)
            parts |= dict.fromkeys(sorted(crops.features), (crops, windows))
        if parts:
            crop = Crop(parts)
        if self.functions is not None:
            calls = self.functions.calls(seed, epoch, numbers, episode, start)
        return Drawn(crop, calls)

    def told(self, drawn: Drawn, facts: Sequence[Facts], episode: IntArray) -> dict[str, Any]:
        """What batches tell of it: `crop`, int64[n, 4], and if there are such `flipped`, bool[n],
        and `intrinsics`, float64[n, 4], NaN where an episode has none; of each camera that has a
        name under `<name>_crop` and so on. Where cameras share a window and the metadata has each,
        there are `<feature>_intrinsics`, and so there are of resized features without steps."""
        told: dict[str, torch.Tensor] = {}
        for one in self._resized:
            told[f"{one.name}_intrinsics"] = torch.from_numpy(one.intrinsics(facts))
        episode = self._facts.rows(episode)
        for number, crops in enumerate(self.crops if drawn.crop is not None else ()):
            assert drawn.crop is not None
            _, windows = drawn.crop.parts[min(crops.features)]
            of = "" if crops.name is None else f"{crops.name}_"
            told[f"{of}crop"] = torch.from_numpy(windows.crops)
            if any(isinstance(step, HorizontalFlip) for step in crops.steps):
                told[f"{of}flipped"] = torch.from_numpy(windows.flipped)
            for one in self._known[number]:
                cameras = one.intrinsics(facts, self._sizes(number, episode))
                of = "" if one.name is None else f"{one.name}_"
                told[f"{of}intrinsics"] = torch.from_numpy(windows.intrinsics(cameras))
        return told

    def _sizes(self, number: int, episode: IntArray) -> IntArray | None:
        """Height and width of these episodes' frames, int64[n, 2], where they vary."""
        return self._frames[number][episode] if number in self._frames else None

    def _learn(
        self, number: int, episode: IntArray, start: IntArray, sources: Sequence[ClipRows[Any]]
    ) -> None:
        """Note how large frames of these episodes are.

        Raises `ClipError` where those of one episode differ.
        """
        if number not in self._frames:
            return
        known, features = self._frames[number], self.crops[number].features
        for source in sources:
            for name in features.intersection(source.features):
                found = source.arena.sizes(name, source.rows.reshape(-1))
                found = found.reshape(*source.rows.shape, 2)
                for clip, row in enumerate(episode.tolist()):
                    if not known[row].any():
                        known[row] = found[clip, 0]
                    if len(wrong := np.flatnonzero((found[clip] != known[row]).any(axis=1))):
                        raise ClipError(
                            "frames of an episode differ in size, and clips have one window",
                            file=self._url,
                            episode=self._facts.key(row),
                            feature=name,
                            expected="{} x {} pixels, as of its other frames and features".format(
                                *known[row].tolist()
                            ),
                            got="{} x {} in the clip that starts at frame {}".format(
                                *found[clip, wrong[0]].tolist(), start[clip]
                            ),
                        )

    @contextmanager
    def _naming(
        self, episode: IntArray, sizes: IntArray | None, crops: ClipCrops
    ) -> Iterator[None]:
        """An error names the episode whose frames are too small."""
        try:
            yield
        except ClipError as error:
            if sizes is not None:
                least = int(episode[np.argmin((sizes - crops.size).min(axis=1))])
                error.located(
                    file=self._url, episode=self._facts.key(least), feature=min(crops.features)
                )
            raise

    def _warn_of_pairs(self) -> None:
        """Say which stereo pairs are flipped."""
        flipped = {
            name
            for crops in self.crops
            if any(isinstance(step, HorizontalFlip) and step.p for step in crops.steps)
            for name in crops.features
        }
        for left in sorted(flipped):
            if (right := partner_of(left, flipped)) is not None:
                say_once(
                    f"{self._url}: HorizontalFlip mirrors {left} and {right}: in flipped clips "
                    "the left camera is the right one, so exchange the two where they are flipped"
                )


class _Camera(NamedTuple):
    """A camera of the metadata `camera`: `name`, or `None` for one that features share.

    `frame` is height and width of stored frames, `None` where these vary; `size` those of resized
    frames.
    """

    name: str | None
    frame: tuple[int | None, ...]
    size: tuple[int, int] | None = None

    def intrinsics(self, facts: Sequence[Facts], frames: IntArray | None = None) -> FloatArray:
        """fx, fy, cx, cy of the camera in these episodes, of resized frames if these are;
        float64[n, 4]. `frames`, int64[n, 2], are sizes of frames that vary."""
        sizes = [self.frame] * len(facts) if frames is None else frames.tolist()
        places = zip(facts, sizes, strict=True)
        found = [self._find(one.metadata["camera"], *size) for one, size in places]
        table = np.array(found, np.float64).reshape(-1, len(_CAMERA) + 2)
        cameras: FloatArray = table[:, : len(_CAMERA)]
        if self.size is None:
            return cameras
        sides: Any = table[:, len(_CAMERA) :].T  # NaN where unknown
        return replace(CropWindows.whole(*sides), size=self.size).intrinsics(cameras)

    def _find(self, camera: Any, height: int | None, width: int | None) -> list[float]:
        """fx, fy, cx, cy, and height and width of the stored frame; NaN where unknown."""
        if isinstance(camera, Mapping):
            own = camera.get(self.name, camera)
            camera = own if isinstance(own, Mapping) else camera
            values = [camera.get(one) for one in _CAMERA]
            size = {"height": height, "width": width}
            fits = all(n is None or camera.get(one, n) == n for one, n in size.items())
            if fits and all(type(value) in (int, float) for value in values):
                known = [camera.get(one) if n is None else n for one, n in size.items()]
                return [n if type(n) in (int, float) else float("nan") for n in (*values, *known)]
        return [float("nan")] * (len(_CAMERA) + 2)


def _cameras_of(crops: ClipCrops, sizes: Mapping[str, Any]) -> list[_Camera]:
    """Of features with a window: one that they share, unless they are stored in several sizes; then
    their own."""
    own = [_Camera(name, *sizes.get(name, (crops.frame,))) for name in sorted(crops.features)]
    if crops.name is None and len({one[1:] for one in own}) == 1:
        return [own[0]._replace(name=None), *own]
    return own


def _known(cameras: Sequence[_Camera], camera: Any) -> list[_Camera]:
    """Those that an episode's metadata has; alone the one that features share, if it is known."""
    facts = [Facts("", 0, {"camera": camera})]
    known = [one for one in cameras if not np.isnan(one.intrinsics(facts)).any()]
    return known[:1] if known and known[0].name is None else known


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
