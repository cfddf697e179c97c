"""`view_rerun`: episodes in the Rerun viewer, or in a file for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import DestinationError
from seqrecord.store.feature_kinds import size_in
from seqrecord.store.lazy import import_extra
from seqrecord.store.reading.dataset import Dataset, DatasetLike
from seqrecord.store.reading.episode import Episode, values_in_order
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.opening import opened
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.units import Progress
from seqrecord.tools.viewer.kinds import MOST_CURVES, flow_colours, kind_of


def view_rerun(
    data: DatasetLike,
    episodes: EpisodeFilter = None,
    *,
    features: Sequence[str] | None = None,
    save: str | PathLike[str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Show episodes in the Rerun viewer, in sequence on one timeline. Returns the number of frames.

    Timeline `frame` counts frames; `seconds` exists if all episodes have fps. Each
    feature is an entity: images; depth as depth images in meters; flow in Middlebury colors; masks
    and segmentations as labels; poses as transforms; scalars and short vectors as plots; text as a
    log; other features as tensors. The type depends on the kind in the schema, or on name and shape
    without one. Entity `episode` logs the start and metadata of each episode. A frame without a
    feature clears its entity.

    Poses are camera to world: `[7]`, translation and quaternion x, y, z, w, or a matrix `[3, 4]` or
    `[4, 4]`. Their entity is `world/NAME`.

    Args:
        data: path or URL of a dataset, or an open dataset.
        episodes: keys, a glob or a function, as for loaders. Default: all.
        features: names of features. Default: all.
        save: write a `.rrd` file instead of starting the viewer, which needs a display.
        progress: called after each frame, in frames.
        storage_options: options of the filesystem, if `data` is a URL.

    At most 32 frames are in memory. Raises `MissingPackageError` without rerun-sdk, `ClipError` for
    missing episodes, `DestinationError` if the file cannot be written.
    """
    rerun = import_extra("rerun", "this requires Rerun, the extra `rerun`: pip install rerun-sdk")
    with opened(data, features=features, storage_options=storage_options) as dataset:
        rows = dataset.contents.find_episodes(episodes)
        keys = dataset.contents.index.keys_of(rows)
        stream = rerun.RecordingStream("seqrecord")
        if save is None:
            rerun.spawn(recording=stream)
        else:
            try:
                stream.save(fspath(save))
            except RuntimeError as error:
                raise DestinationError(
                    f"cannot write the file: {error}", file=fspath(save)
                ) from error
        try:
            return _Log(rerun, stream, dataset).show(keys, progress)
        finally:
            stream.flush()
            stream.disconnect()


class _Log:
    """Logs episodes to a recording, in sequence."""

    def __init__(self, rerun: ModuleType, stream: Any, dataset: Dataset) -> None:
        self._rerun, self._stream, self._dataset = rerun, stream, dataset
        self._frame, self._seconds = 0, 0.0
        self._longest: dict[str, float] = {}  # length of flow at full color, by feature

    def show(self, keys: Sequence[str], progress: Callable[[Progress], None] | None) -> int:
        episodes = [self._dataset.episodes[key] for key in keys]
        timed = all(episode.fps for episode in episodes)
        total = sum(map(len, episodes))
        for episode in episodes:
            for _ in self._episode(episode, episode.fps if timed else None):
                if progress is not None:
                    progress(Progress(self._frame, total))
        return self._frame

    def _episode(self, episode: Episode, fps: float | None) -> Iterator[None]:
        """Log an episode frame by frame."""
        self._longest.clear()
        numbers = range(len(episode))
        values = {name: values_in_order(episode, name, numbers) for name in episode.features}
        self._set_time(fps)
        text = "".join(f"\n{name}: {value}" for name, value in episode.metadata.items())
        self._log("episode", self._rerun.TextLog(f"{episode.key}{text}"))
        for _ in numbers:
            self._set_time(fps)
            for name, spec in episode.features.items():
                if (value := next(values[name])) is not None:
                    self._feature(name, spec, value)
                else:
                    self._log(_entity(name, spec), self._rerun.Clear(recursive=False))
            self._frame += 1
            self._seconds += 1 / fps if fps else 0.0
            yield

    def _set_time(self, fps: float | None) -> None:
        self._stream.set_time("frame", sequence=self._frame)
        if fps:
            self._stream.set_time("seconds", duration=self._seconds)

    def _log(self, entity: str, value: Any) -> None:
        self._stream.log(entity, value)

    def _feature(self, name: str, spec: FeatureSpec, value: Any) -> None:
        entity, rerun = _entity(name, spec), self._rerun
        if isinstance(value, (str, bytes)):
            text = value if isinstance(value, str) else f"{len(value)} bytes"
            self._log(entity, rerun.TextLog(text))
        elif _is_pose(name, spec):
            self._log(entity, _transform(rerun, value))
        else:
            self._log(entity, self._array(name, spec, value))

    def _array(self, name: str, spec: FeatureSpec, value: npt.NDArray[Any]) -> Any:
        rerun = self._rerun
        kind = kind_of(name, value.dtype, value.shape, spec.kind)
        if kind == "picture":
            return rerun.Image(value)
        if kind == "depth":
            if value.dtype.kind == "f":
                value = value.astype(np.float32)
            size = size_in(spec.unit or "m", "m")
            return rerun.DepthImage(value, meter=None if size is None else 1 / size)
        if kind == "flow":
            if name not in self._longest:
                length = np.hypot(*np.moveaxis(value.astype(np.float32), -1, 0))
                finite_lengths = length[np.isfinite(length) & (length < 1e9)]
                self._longest[name] = (
                    float(np.quantile(finite_lengths, 0.99)) if finite_lengths.size else 1.0
                )
            return rerun.Image(flow_colours(value, self._longest[name]))
        if kind == "labels":
            return rerun.SegmentationImage((value.astype(np.int64) % 65_536).astype(np.uint16))
        if kind == "curves" and value.size <= MOST_CURVES:
            return rerun.Scalars(value.ravel().astype(np.float64))
        return rerun.Tensor(value)


def _entity(name: str, spec: FeatureSpec) -> str:
    return f"world/{name}" if _is_pose(name, spec) else name


def _is_pose(name: str, spec: FeatureSpec) -> bool:
    is_named = spec.kind == "pose" or (spec.kind is None and name.startswith("pose"))
    return is_named and spec.dtype.kind == "f" and spec.shape in ((7,), (3, 4), (4, 4))


def _transform(rerun: ModuleType, pose: npt.NDArray[Any]) -> Any:
    if pose.ndim == 2:
        return rerun.Transform3D(translation=pose[:3, 3], mat3x3=pose[:3, :3])
    return rerun.Transform3D(translation=pose[:3], quaternion=rerun.Quaternion(xyzw=pose[3:]))
