"""Random augmentation parameters of clips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, located
from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.layouts import episode_layout
from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.loader.clips.transforms import Camera, HorizontalFlip
from seqrecord.loader.engine.batches import ClipDraws, ClipRows
from seqrecord.loader.engine.crops import (
    ClipCrops,
    Crop,
    DistortionChange,
    DrawBatch,
    IntrinsicsChange,
    ValuesChange,
    unknown_size,
    whole_windows,
)
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.pipes.columns import (
    BatchClips,
    ClipColumn,
    ClipEpisodes,
    Column,
    EpisodeMetadata,
    NoDraws,
)
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.registered_columns import Flips
from seqrecord.store.cameras.crop_windows import CropWindows, FloatArray
from seqrecord.store.cameras.distortion import (
    FISHEYE,
    MODEL,
    OPENCV,
    lens_model,
    mirror_factors,
)
from seqrecord.store.cameras.intrinsics import (
    OWN_DISTORTION,
    EpisodeCamera,
    followed_feature,
)
from seqrecord.store.feature_kinds import (
    INTRINSICS_SHAPES,
    are_intrinsics,
    is_distortion,
    is_picture,
    partner_of,
)
from seqrecord.store.reading.dataset import Dataset

if TYPE_CHECKING:
    from seqrecord.loader.pipes.registered_columns import ImageColumns

DrawAt: TypeAlias = Callable[[IntArray, int], float]
"""Draws a number in [0, 1) for the batch of clips: their places, int64[n], and a purpose."""


@dataclass(frozen=True, eq=False)
class CropSampler:
    """Draws crop windows for one camera's features, and makes their columns. Picklable.

    If frame sizes vary, `sizes` has height and width of each episode's frames, int64[E, 2], 0 until
    first seen.
    """

    crops: ClipCrops
    episodes: ClipEpisodes
    sizes: IntArray | None
    url: str

    def windows(
        self,
        seed: int,
        epoch: int,
        numbers: IntArray,
        episode: IntArray,
        draw_batch: DrawBatch | None,
        centers: FloatArray | None,
    ) -> CropWindows:
        """The windows for n clips of a batch, by clip numbers and episode rows, int64[n] each."""
        sizes, smallest = None if self.sizes is None else self.sizes[episode], dict[str, str]()
        if sizes is not None and len(sizes):
            row = int(episode[np.argmin((sizes - self.crops.size).min(axis=1))])
            smallest = self._place(row, min(self.crops.features))
        with located(ClipError, **smallest):
            return self.crops.windows(seed, epoch, numbers, sizes, draw_batch, centers)

    @property
    def columns(self) -> list[ClipColumn]:
        """`crop`, int64[4]; and with flips `flipped`, bool."""
        of = "" if self.crops.name is None else f"{self.crops.name}_"
        columns: list[ClipColumn] = [Column(f"{of}crop", np.dtype(np.int64), (4,), self._crops)]
        if any(isinstance(step, HorizontalFlip) for step in self.crops.steps):
            columns.append(Column(f"{of}flipped", np.dtype(np.bool_), (), self._flipped))
        return [replace(column, needs_frames=self.sizes is not None) for column in columns]

    def knows(self, episode: IntArray) -> bool:
        """Whether the frame sizes of these episodes, by rows int64[n], are known."""
        return self.sizes is None or bool(self.sizes[episode].all())

    def _windows(self, batch: BatchClips) -> CropWindows:
        assert batch.drawn.crop is not None, "windows of each camera"
        return batch.drawn.crop.parts[min(self.crops.features)][1]

    def _crops(self, batch: BatchClips) -> IntArray:
        return self._windows(batch).crops

    def _flipped(self, batch: BatchClips) -> npt.NDArray[np.bool_]:
        return self._windows(batch).flipped

    def learn(self, episode: IntArray, start: IntArray, sources: Sequence[ClipRows[Any]]) -> None:
        """Record the frame sizes of episodes, if sizes vary.

        Raises `ClipError` if frames of one episode differ, or one has no value.
        """
        if (known_sizes := self.sizes) is None:
            return
        for source in sources:
            # In a fixed order, so that equal data raises equal errors.
            for name in filter(self.crops.features.__contains__, source.features):
                sizes = source.arena.sizes(name, source.rows.reshape(-1))
                sizes = sizes.reshape(*source.rows.shape, 2)
                for clip, row in enumerate(episode.tolist()):
                    if not sizes[clip].all():
                        raise unknown_size(int(start[clip]), **self._place(row, name))
                    if not known_sizes[row].any():
                        known_sizes[row] = sizes[clip, 0]
                    differing = sizes[clip][(sizes[clip] != known_sizes[row]).any(axis=1)]
                    for height, width in differing[:1].tolist():
                        raise ClipError(
                            "frames of an episode differ in size, and clips have one window",
                            **self._place(row, name),  # type: ignore[arg-type]
                            expected="{} x {} pixels, as of its other frames and features; if {} "
                            "has no pixels, its kind, such as state; or steps with features=[…] "
                            "without it".format(*known_sizes[row].tolist(), name),
                            got=f"{height} x {width} in the clip that starts at frame "
                            f"{start[clip]}",
                        )

    def _place(self, row: int, feature: str) -> dict[str, str]:
        return {"file": self.url, "episode": self.episodes.key(row), "feature": feature}


@dataclass(frozen=True)
class _FrameDistortion:
    """Per-frame distortion `name` of the feature `image`: `count` coefficients.

    `has_kind` is whether its kind is declared, not implied by its name.
    """

    name: str
    image: str
    count: int
    has_kind: bool

    def change(
        self,
        parts: Mapping[str, tuple[ClipCrops, CropWindows]],
        episodes: Sequence[EpisodeMetadata],
        dataset: Dataset,
    ) -> DistortionChange:
        """The change for clips of these episodes with these windows.

        Raises `ClipError` for a mirrored clip of an unknown lens model.
        """
        factor = np.ones((len(episodes), self.count))
        for clip in np.flatnonzero(parts[self.image][1].flipped).tolist():
            episode = episodes[clip]
            camera = EpisodeCamera(self.image, ()).camera_in(
                dataset.contents.camera_of(episode.metadata)
            )
            model = lens_model(camera, self.count)
            if model is not None:
                factor[clip] = mirror_factors(model, self.count)
                continue
            problem = "HorizontalFlip of distortion with an unknown lens model"
            remedy = f"a metadata `camera` with {MODEL}: {OPENCV} or {FISHEYE}"
            if self.has_kind:
                raise ClipError(
                    problem,
                    file=dataset.url,
                    episode=episode.key,
                    feature=self.name,
                    expected=remedy,
                )
            warn_once(f"{dataset.url}: {problem}: {self.name} is unchanged; expected {remedy}")
        return DistortionChange(factor, np.zeros_like(factor))


@dataclass(frozen=True)
class _FrameIntrinsics:
    """Per-frame intrinsics `name` of the feature `image`.

    `resized` are its stored and resized (height, width), `None` if not resized on reading.
    """

    name: str
    image: str
    resized: tuple[tuple[int, int], tuple[int, int]] | None

    def change(
        self, parts: Mapping[str, tuple[ClipCrops, CropWindows]], count: int
    ) -> IntrinsicsChange:
        """The change for `count` clips with these windows."""
        windows = parts[self.image][1] if self.image in parts else None
        resized = None if self.resized is None else whole_windows(*self.resized, count)
        return IntrinsicsChange.of(windows, resized, count)


class AugmentationSampler(NoDraws):
    """Draws the random parameters of a `clip_transform`. Picklable if its functions are.

    Raises `ClipError` for steps that do not fit the features.

    Args:
        cameras: crops and flips of each camera.
        arrays: arrays of a frame, after `frame_transform`.
        episodes: the episodes, with the metadata `camera`.
        images: the registered columns of images, which decide what flips change.

    Attributes:
        arrays: arrays of a frame in batches, before functions.
    """

    def __init__(
        self,
        cameras: Sequence[Camera],
        arrays: Mapping[str, ArraySpec],
        dataset: Dataset,
        episodes: ClipEpisodes,
        images: ImageColumns | None = None,
    ) -> None:
        self._episodes, self.arrays = episodes, arrays
        kinds = {name: spec.kind for name, spec in dataset.features.items()}
        self.crops = tuple(ClipCrops.of(camera, arrays, kinds) for camera in cameras)
        for crops in self.crops:
            self.arrays = crops.specs(self.arrays)
            if crops.note is not None:
                warn_once(f"{dataset.url}: clip_transform: {crops.note}")
        sizes: dict[str, Any] = {  # of stored and resized frames
            name: (dataset.features[name].stored.shape[:2], size)
            for name, size in dataset.contents.sizes.items()
            if name in arrays
        }
        self._intrinsics: list[_FrameIntrinsics] = []
        if "intrinsics" in kinds.values():
            self._intrinsics = _intrinsics_of(self.crops, sizes, arrays, dataset)
        self._distortion = _distortion_of(self.crops, arrays, dataset)
        self._cameras = []
        count = len(episode_layout(dataset.contents))
        for crops in self.crops:
            frames = np.zeros((count, 2), np.int64) if None in crops.frame else None
            self._cameras.append(CropSampler(crops, episodes, frames, dataset.url))
        self._images = images
        self._centered = [_centered_image(crops, images) for crops in self.crops]
        if images is None:
            _warn_of_pairs(self.crops, dataset.url)
        self.flips = Flips() if images is None else images.flips(self.crops, arrays, kinds)

    @property
    def is_any(self) -> bool:  # type: ignore[override]
        """Whether there is anything to draw."""
        return bool(self.crops or self._intrinsics) or self.functions is not None

    @property
    def is_random(self) -> bool:  # type: ignore[override]
        """Whether the draws of a clip differ by epoch."""
        steps = [step for crops in self.crops for step in crops.steps]
        return self.functions is not None or any(
            drawn_step.num_draws or drawn_step.per_batch for drawn_step in steps
        )

    def draw(
        self,
        seed: int,
        epoch: int,
        clips: ClipKeys,
        sources: Sequence[ClipRows[Any]] = (),
        *,
        sharing: ClipTable | None = None,
        draw_at: DrawAt | None = None,
    ) -> ClipDraws:
        """Draw parameters for n clips.

        The draw depends only on seed, epoch, the episode's key and a frame: the clip's first frame,
        or the first frame of the clip's row in `sharing`, so that all clips of a row get the
        same. If an epoch repeats clips, it also depends on their samples. If frame sizes vary,
        windows depend on the sizes of the episodes' frames, measured in `sources` at first; clips
        that are only planned lack such windows.
        `draw_at` makes the draws for the clips' batch, by their places.
        """
        shared_clips = clips
        if sharing is not None:
            shared_clips = clips._replace(start=sharing.first_starts(clips.episode, clips.start))
        numbers, calls = self._episodes.numbers(shared_clips), None
        episode, start = self._episodes.rows(clips.episode), self._episodes.starts(clips)
        draw_batch = None
        if draw_at is not None and len(start):
            draw_batch = partial(draw_at, clips.place)
        parts: dict[str, tuple[ClipCrops, CropWindows]] = {}
        for camera, image in zip(self._cameras, self._centered, strict=True):
            camera.learn(episode, start, sources)
            if not camera.knows(episode):
                continue
            centers = None
            if image is not None and self._images is not None:
                centers = self._images.principal_points(image, episode, start)
            windows = camera.windows(seed, epoch, numbers, episode, draw_batch, centers)
            parts |= dict.fromkeys(sorted(camera.crops.features), (camera.crops, windows))
        changes: dict[str, ValuesChange] = {
            intrinsics.name: intrinsics.change(parts, len(start)) for intrinsics in self._intrinsics
        }
        for distortion in self._distortion:
            if distortion.image in parts:
                metadata = self._episodes.of(clips.episode)
                dataset = self._episodes.dataset
                changes[distortion.name] = distortion.change(parts, metadata, dataset)
        if self.flips.points:
            changes |= self.flips.changes(_flipped_in(parts, len(start)))
        if self.functions is not None:
            calls = self.functions.calls_for(seed, epoch, numbers, episode, start)
        crop = Crop(parts, changes, self.flips.partners) if parts or changes else None
        return ClipDraws(crop, calls)

    def sizes(self, draw_batch: DrawBatch) -> dict[str, tuple[int, int]]:
        """Height and width of features in a batch, if batches differ in size."""
        sized_crops = [crops for crops in self.crops if crops.per_batch]
        return {name: crops.size_in(draw_batch) for crops in sized_crops for name in crops.features}

    @property
    def columns(self) -> tuple[ClipColumn, ...]:  # type: ignore[override]
        """Columns: `crop`, int64[n, 4]; with flips `flipped`, bool[n]. A named camera has
        `<name>_crop` and `<name>_flipped`.
        """
        return tuple(chain.from_iterable(camera.columns for camera in self._cameras))

    @property
    def sized_by_frames(self) -> frozenset[str]:  # type: ignore[override]
        """See `NoDraws`."""
        varying = (camera.crops.features for camera in self._cameras if camera.sizes is not None)
        return frozenset(chain.from_iterable(varying))

    @property
    def changed(self) -> frozenset[str]:  # type: ignore[override]
        """See `NoDraws`."""
        intrinsics = (intrinsics.name for intrinsics in self._intrinsics)
        distortion = (distortion.name for distortion in self._distortion)
        return frozenset((*intrinsics, *distortion, *self.flips.points))


def _centered_image(crops: ClipCrops, images: ImageColumns | None) -> str | None:
    """The image whose principal point windows need; `None` if they need none.

    Raises `ClipError` without `camera=`, and for an image without a camera.
    """
    if not crops.needs_centers:
        return None
    names = [] if images is None else images.images
    image = next((name for name in names if name in crops.features), None)
    if image is None:
        raise ClipError(
            "around='principal_point' takes the intrinsics of camera=",
            feature=min(crops.features),
            expected="camera=True, and an image that has a camera",
            got=f"cameras of {', '.join(names)}" if names else "no camera=",
        )
    return image


def _flipped_in(
    parts: Mapping[str, tuple[ClipCrops, CropWindows]], count: int
) -> npt.NDArray[np.bool_]:
    """Which of `count` clips are flipped; bool[n]."""
    flipped = np.zeros(count, np.bool_)
    for _, windows in parts.values():
        flipped |= windows.flipped
    return flipped


def _intrinsics_of(
    crops: Sequence[ClipCrops],
    sizes: Mapping[str, tuple[Any, Any]],
    arrays: Mapping[str, ArraySpec],
    dataset: Dataset,
) -> list[_FrameIntrinsics]:
    """The intrinsics among `arrays` that change, by crops or by resized features in `sizes`.

    Raises `ClipError` if it is unclear which image one belongs to, or for stored sizes that vary.
    """
    kinds = {name: spec.kind for name, spec in dataset.features.items()}
    names = [name for name in arrays if kinds.get(name) == "intrinsics"]
    changed = {*sizes}.union(*(crop.features for crop in crops))
    if not names or not changed:
        return []
    images = {
        name: (next((at for at, c in enumerate(crops) if name in c.features), -1), sizes.get(name))
        for name, spec in arrays.items()
        if name in changed or is_picture(name, spec, kinds.get(name))
    }
    intrinsics, schema, renamed = [], dataset.contents.index.schema.active, dataset.contents.names
    for name in names:
        if not are_intrinsics(arrays[name]):
            raise ClipError(
                "not intrinsics", feature=name, expected=INTRINSICS_SHAPES, got=str(arrays[name])
            )
        image = followed_feature(name, names, images, schema, renamed=renamed)
        if image not in changed:
            continue
        assert image is not None, "an image that changed"
        resized = sizes.get(image)
        if resized is not None and None in resized[0]:
            raise ClipError(
                "per-frame intrinsics cannot follow resize= of frames whose size varies",
                feature=name,
                expected="a Resize as clip_transform instead, or features without it",
                got=f"{image}: {dataset.features[image].stored}",
            )
        intrinsics.append(_FrameIntrinsics(name, image, resized))
    return intrinsics


def _distortion_of(
    crops: Sequence[ClipCrops], arrays: Mapping[str, ArraySpec], dataset: Dataset
) -> list[_FrameDistortion]:
    """The distortion features among `arrays` whose image may be mirrored."""
    kinds = {name: spec.kind for name, spec in dataset.features.items()}
    names = [name for name, spec in arrays.items() if is_distortion(name, spec, kinds.get(name))]
    flipped = _flipped_features(crops)
    if not names or not flipped:
        return []
    images = {
        name: next((at for at, c in enumerate(crops) if name in c.features), -1)
        for name, spec in arrays.items()
        if name in flipped or is_picture(name, spec, kinds.get(name))
    }
    distortions, schema, renamed = [], dataset.contents.index.schema.active, dataset.contents.names
    for name in names:
        image = followed_feature(name, names, images, schema, OWN_DISTORTION, renamed)
        if image in flipped:
            assert image is not None, "a flipped feature"
            count = arrays[name].shape[0] or 0
            distortions.append(_FrameDistortion(name, image, count, kinds.get(name) is not None))
    return distortions


def _flipped_features(cameras: Sequence[ClipCrops]) -> set[str]:
    """Features that a flip may mirror."""
    return {
        name
        for crops in cameras
        if any(isinstance(step, HorizontalFlip) and step.p for step in crops.steps)
        for name in crops.features
    }


def _warn_of_pairs(cameras: Sequence[ClipCrops], url: str) -> None:
    """Log the stereo pairs that are flipped."""
    flipped = _flipped_features(cameras)
    for name in sorted(flipped):
        if (right := partner_of(name, flipped)) is not None:
            warn_once(
                f"{url}: HorizontalFlip mirrors {name} and {right}: in flipped clips the left "
                "camera is the right one, so exchange the two where they are flipped"
            )
