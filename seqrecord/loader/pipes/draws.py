"""Random augmentation parameters of clips."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, located
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
from seqrecord.loader.pipes.camera_flips import WorldFlips, flipped_features, warn_of_pairs
from seqrecord.loader.pipes.columns import (
    BatchClips,
    ClipColumn,
    ClipEpisodes,
    Column,
    EpisodeMetadata,
    NoDraws,
)
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.store.clips.cameras import (
    OWN_DISTORTION,
    EpisodeCamera,
    followed_feature,
    known_cameras,
)
from seqrecord.store.clips.distortion import (
    COEFFICIENTS,
    FISHEYE,
    MAX_COEFFICIENTS,
    MODEL,
    OPENCV,
    lens_model,
    lens_of,
    mirror_factors,
)
from seqrecord.store.clips.frames import ClipKeys
from seqrecord.store.clips.tables import ClipTable, IntArray
from seqrecord.store.clips.transforms import Camera, CropWindows, FloatArray, HorizontalFlip
from seqrecord.store.feature_kinds import (
    INTRINSICS_SHAPES,
    are_intrinsics,
    is_distortion,
    is_picture,
)
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import repr_of

if TYPE_CHECKING:
    from seqrecord.loader.pipes.camera_columns import CameraColumns

DrawAt: TypeAlias = Callable[[IntArray, int], float]
"""Draws a number in [0, 1) for the batch of clips: their places, int64[n], and a purpose."""


@dataclass(frozen=True, eq=False)
class CropSampler:
    """Draws crop windows for one camera's features, and makes their columns. Picklable.

    `known` are the cameras with intrinsics in the metadata, and `without_lens` the ones whose
    distortion is in no column or feature. If frame sizes vary, `sizes` has height and width of each
    episode's frames, int64[E, 2], 0 until first seen.
    """

    crops: ClipCrops
    episodes: ClipEpisodes
    known: Sequence[EpisodeCamera]
    without_lens: Sequence[EpisodeCamera]
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
        """`crop`, int64[4]; with flips `flipped`, bool; and the columns of the cameras."""
        of = "" if self.crops.name is None else f"{self.crops.name}_"
        columns: list[ClipColumn] = [Column(f"{of}crop", np.dtype(np.int64), (4,), self._crops)]
        if any(isinstance(step, HorizontalFlip) for step in self.crops.steps):
            columns.append(Column(f"{of}flipped", np.dtype(np.bool_), (), self._flipped))
        columns += camera_columns(self.known, self._camera_values)
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

    def _camera_values(self, batch: BatchClips) -> dict[str, FloatArray]:
        """The columns of the cameras."""
        _warn_of_late_lenses(self.without_lens, batch.metadata, self.episodes.dataset)
        episode, values = self.episodes.rows(batch.clips.episode), dict[str, FloatArray]()
        sizes = None if self.sizes is None else self.sizes[episode]
        for camera in self.known:
            partner = self._partner(batch, camera)
            values |= camera.columns(self._windows(batch), cameras_of(batch), sizes, partner)
        return values

    def _partner(self, batch: BatchClips, camera: EpisodeCamera) -> EpisodeCamera | None:
        assert batch.drawn.crop is not None
        name = batch.drawn.crop.partners.get(camera.name or "")
        frames = self.episodes.dataset.features
        return None if name is None else camera.partner(name, frames[name].stored.shape[:2])

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


def cameras_of(batch: BatchClips) -> list[Any]:
    """The metadata `camera` of a batch's clips."""
    contents = batch.episodes.dataset.contents
    return [contents.camera_of(episode.metadata) for episode in batch.metadata]


def camera_columns(
    cameras: Sequence[EpisodeCamera], make: Callable[[BatchClips], Mapping[str, FloatArray]]
) -> list[ClipColumn]:
    """The columns of cameras, which `make` returns together."""
    shapes = [item for camera in cameras for item in camera.shapes.items()]
    dtype = np.dtype(np.float64)
    return [Column(name, dtype, shape, partial(_one_of, make, name)) for name, shape in shapes]


def _one_of(
    make: Callable[[BatchClips], Mapping[str, FloatArray]], name: str, batch: BatchClips
) -> FloatArray:
    return batch.once(make, lambda: make(batch))[name]


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
        episode: row of one episode, int64[1]; whether it has intrinsics decides for all.
        images: the cameras of images, if flips mirror the world of a clip.

    Attributes:
        arrays: arrays of a frame in batches, before functions.
    """

    def __init__(
        self,
        cameras: Sequence[Camera],
        arrays: Mapping[str, ArraySpec],
        dataset: Dataset,
        episodes: ClipEpisodes,
        episode: IntArray,
        images: CameraColumns | None = None,
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
        own_columns = {intrinsics.name for intrinsics in self._intrinsics}
        self._distortion = _distortion_of(self.crops, arrays, dataset)
        camera = (
            dataset.contents.camera_of(episodes.of(episode)[0].metadata)
            if cameras or sizes
            else None
        )
        self._cameras = []
        for crops in self.crops:
            may_share, count = crops.name is None, len(dataset.contents.episode_table)
            episode_cameras = known_cameras(
                crops.features, crops.frame, sizes, camera, may_share=may_share
            )
            episode_cameras = _without_features(episode_cameras, own_columns, arrays)
            frames = np.zeros((count, 2), np.int64) if None in crops.frame else None
            place = frames, dataset.url
            lacking = _without_lens(episode_cameras, arrays)
            self._cameras.append(CropSampler(crops, episodes, episode_cameras, lacking, *place))
        alone = sizes.keys() - {name for crops in self.crops for name in crops.features}
        resized = known_cameras(alone, (), sizes, camera, may_share=False) if alone else []
        self._resized = _without_features(resized, own_columns, arrays)
        known_columns = (*(sampler.known for sampler in self._cameras), self._resized)
        if camera is not None and not any((*known_columns, own_columns)):
            warn_once(
                f"{dataset.url}: no intrinsics: the metadata `camera` is not "
                '{"fx": …, "fy": …, "cx": …, "cy": …} of frames of this size, nor a dict of such '
                f"by feature: {repr_of(camera, 200)}"
            )
        self._images = images
        self._centered = [_centered_image(crops, images) for crops in self.crops]
        self.flips = _world_flips(self.crops, arrays, kinds, images, dataset)
        _warn_of_lenses(known_columns, camera, arrays, dataset.url)

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
                centers = self._images.rigs.principal_points(image, episode, start)
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
        """Columns: `crop`, int64[n, 4]; with flips `flipped`, bool[n]; and `intrinsics`, float64[n,
        4], `distortion`, float64[n, 14] and `skew`, float64[n], if the metadata has them, NaN for
        episodes without. A named camera has `<name>_crop` and so on.

        Cameras that share a window have `<feature>_intrinsics` if the metadata has each, and so
        have resized features without steps.
        """
        cameras = (column for camera in self._cameras for column in camera.columns)
        return (*camera_columns(self._resized, self._resized_values), *cameras)

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

    def _resized_values(self, batch: BatchClips) -> dict[str, FloatArray]:
        """The columns of resized features without steps."""
        values = dict[str, FloatArray]()
        for camera in self._resized:
            values |= camera.columns(None, cameras_of(batch))
        return values


def _world_flips(
    crops: Sequence[ClipCrops],
    arrays: Mapping[str, ArraySpec],
    kinds: Mapping[str, str | None],
    images: CameraColumns | None,
    dataset: Dataset,
) -> WorldFlips:
    """The features that flips change with the world; without `images`, a warning of pairs."""
    if images is not None:
        return WorldFlips.of(crops, arrays, kinds, images.windows, dataset.contents.names)
    warn_of_pairs(crops, dataset.url)
    return WorldFlips()


def _centered_image(crops: ClipCrops, images: CameraColumns | None) -> str | None:
    """The image whose principal point windows need; `None` if they need none.

    Raises `ClipError` without `camera=`, and for an image without a camera.
    """
    if not crops.needs_centers:
        return None
    names = [] if images is None else [image.name for image in images.rigs.images]
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
    flipped = flipped_features(crops)
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


def _without_features(
    cameras: Sequence[EpisodeCamera], columns: Collection[str], arrays: Collection[str]
) -> list[EpisodeCamera]:
    """Cameras whose columns are no features: values per frame count."""
    return [
        camera._replace(
            has_distortion=camera.has_distortion and camera.lens_column not in arrays,
            has_skew=camera.has_skew and camera.skew_column not in arrays,
        )
        for camera in cameras
        if camera.column not in columns
    ]


def _without_lens(cameras: Sequence[EpisodeCamera], arrays: Collection[str]) -> list[EpisodeCamera]:
    """Cameras whose distortion is in no column or feature."""
    lacking = (camera for camera in cameras if not camera.has_distortion)
    return [camera for camera in lacking if camera.lens_column not in arrays]


def _warn_of_lenses(
    cameras: Sequence[Sequence[EpisodeCamera]], metadata: Any, features: Collection[str], url: str
) -> None:
    """Log cameras whose coefficients are in no column or feature, by an episode's `camera`."""
    for camera in chain.from_iterable(cameras):
        own_camera = camera.camera_in(metadata)
        is_lost = camera.lens_column not in features and lens_of(own_camera) is None
        if is_lost and own_camera.get(COEFFICIENTS):
            warn_once(
                f"{url}: no column {camera.lens_column}: the metadata `camera` has "
                f"{COEFFICIENTS} of no known lens; expected {MODEL}: {OPENCV} or {FISHEYE}, and at "
                f"most {MAX_COEFFICIENTS} numbers; got {repr_of(own_camera.get(MODEL), 50)}"
            )


def _warn_of_late_lenses(
    cameras: Sequence[EpisodeCamera], episodes: Sequence[EpisodeMetadata], dataset: Dataset
) -> None:
    """Log the first of `episodes` with a lens of a camera without a column for it."""
    for camera, episode in product(cameras, episodes):
        own_camera = camera.camera_in(dataset.contents.camera_of(episode.metadata))
        if own_camera is not None and any(own_camera.get(COEFFICIENTS) or ()):
            warn_once(
                f"{dataset.url}: no column {camera.lens_column}: the first episode has no known "
                f"lens, but others have {COEFFICIENTS}, such as {repr_of(episode.key, 100)}; load "
                "them separately, for example by episodes="
            )
            return
