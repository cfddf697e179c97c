"""Source for HDF5 files: ALOHA, robomimic, DROID, and others by a map of features."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.embedded import embedded_spec, embedded_value, read_rows
from seqrecord.formats.sources.common.images import image_format
from seqrecord.formats.sources.common.originals import (
    Scan,
    ScannedInPlace,
    find_files,
    has_file,
    key_of,
)
from seqrecord.formats.sources.common.specs import check_spec, feature_spec, kind_of, text_spec
from seqrecord.formats.sources.hdf5.files import (
    encoded_row,
    first_image,
    is_hdf5_name,
    is_text,
    open_hdf5,
    reading_hdf5,
)
from seqrecord.formats.sources.hdf5.hdf5_account import Hdf5Account, check_total
from seqrecord.formats.sources.hdf5.layouts import (
    Hdf5Episode,
    groups,
    is_droid_metadata,
    read_episode,
)
from seqrecord.formats.sources.inventory import Account, left_out_by_pattern, unread_files
from seqrecord.formats.sources.video.files import VIDEO_ENDINGS, VideoFile
from seqrecord.formats.sources.video.streams import own_config, read_gops, video_spec
from seqrecord.formats.sources.video.tables import read_references, read_table
from seqrecord.in_place.files import is_file
from seqrecord.in_place.limits import check_decoded, check_frames
from seqrecord.in_place.references import external_files
from seqrecord.store.format.references import ExternalFile
from seqrecord.store.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.store.schema import EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.video.config import VideoConfig
from seqrecord.video.gops import DecodedFrame, Gop
from seqrecord.video.references import ReferencedGops

_ORDERS = ("rgb", "bgr")
_PLACE = ("file", "group")  # metadata keys: where an episode is


@dataclass(frozen=True)
class Hdf5Source(ScannedInPlace):
    """HDF5 files of robot recordings: a folder of files, at any depth, or one file.

    The layout of each file is detected: ALOHA, robomimic or DROID, see `hdf5.layouts`. Other
    layouts need `map`. Feature names are dataset paths with dots: `observations.images.cam_high`,
    `action`, `obs.agentview_image`. A feature that an episode lacks is missing in its frames; all
    others must have one row per frame.

    DROID's cameras are named `wrist`, `ext1` and `ext2` if its metadata maps their serial numbers.
    Its videos, `recordings/MP4/SERIAL.mp4`, become `observation.image.wrist` and so on. Their
    packets are stored unchanged, and frame i belongs to row i, so the numbers must be equal.

    JPEG or PNG images, one per row, are decoded. robomimic's `next_obs` are read only if `features`
    names them.

    Args:
        root: a folder or a file.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG, unless they are `bgr`.
        map: paths in the file by feature name, for other layouts. A file is then one episode, or
            has robomimic's demonstrations, in which the paths are.
        jpeg_order: channels of JPEGs: `rgb` as JPEG defines, or `bgr`. The default is `bgr` for
            ALOHA, also with `map`: its recorder passes RGB to OpenCV as BGR, and frames are as in
            its reader. Else it is `rgb`.
        without_video: exclude DROID's videos.
        in_place: reference the packets of DROID's videos.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    map: Mapping[str, str] | None = None
    jpeg_order: str | None = None
    without_video: bool = False

    takes_files = True
    keeps_in_place = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jpeg_order not in (None, *_ORDERS):
            raise SourceError("invalid jpeg_order", expected="rgb or bgr", got=self.jpeg_order)

    def exists(self) -> bool:
        """Return whether there is a file with the ending `.hdf5` or `.h5`."""
        return has_file(self.path, is_hdf5_name)

    def schema(self) -> Schema:
        schema = super().schema()
        if self.in_place and not any(spec.is_video for spec in schema.values()):
            raise SourceError(
                "arrays in HDF5 files cannot be read in place; `seqrecord write --src` converts "
                "them",
                file=str(self.root),
                expected="video of DROID",
            )
        return schema

    def external_files(self) -> dict[str, ExternalFile]:
        """Return the files that GOPs may reference, by path."""
        return external_files(self._folder, find_files(self._folder, _is_video))

    def copied_files(self) -> dict[str, ExternalFile]:
        """Return the files of values and metadata."""
        files = find_files(
            self._folder, lambda path: is_hdf5_name(path) or is_droid_metadata(path.name)
        )
        return external_files(self._folder, files)

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with self._open_episode(info) as (episode, path):
            yield from self._read(episode, path)

    def videos(self, info: EpisodeInfo) -> dict[str, Iterator[Gop | ReferencedGops | DecodedFrame]]:
        """Return the GOPs of a DROID episode's cameras; its frames omit these features."""
        schema = {n: spec for n, spec in self.schema().items() if VideoConfig.of(spec) is not None}
        if not schema:
            return {}
        with self._open_episode(info) as (episode, _):
            return {
                name: _gops(info, schema[name], video, in_place=self.in_place)
                for name, video in episode.videos.items()
                if name in schema
            }

    @contextmanager
    def _open_episode(self, info: EpisodeInfo) -> Iterator[tuple[Hdf5Episode, Path]]:
        """Open the episode and its file."""
        path = self._folder / str(info.metadata.get("file", ""))
        if ".." in path.parts or not is_hdf5_name(path):
            raise SourceError("no such episode", file=str(self.root), episode=info.key)
        with located(SourceError, episode=info.key), open_hdf5(path) as file:
            group = str(info.metadata.get("group", "/"))
            if group == "/":
                check_total(file, groups(file))
            yield read_episode(file, path, group, self.map), path

    @property
    def _folder(self) -> Path:
        root = self.path
        return root.parent if is_file(root) else root

    def scan(self, scan: Scan) -> None:
        paths = find_files(self.path, is_hdf5_name)
        if not paths:
            raise SourceError("no HDF5 file found", file=str(self.root), expected="*.hdf5 or *.h5")
        counts = scan.details = Hdf5Account(bool(self.features))
        for path in paths:
            with scan.unless_broken(self._place(path, "/")), open_hdf5(path) as file:
                demos = groups(file)
                for group in demos:
                    place = self._place(path, group)
                    with scan.unless_broken(place), reading_hdf5(path):
                        episode = read_episode(file, path, group, self.map)
                        scan.offered |= dict.fromkeys([*episode.stored, *episode.videos])
                        specs = list(self._specs(episode, path))
                        if episode.videos:
                            known_names = {spec.name for spec in [*scan.specs, *specs]}
                            specs += self._video_specs(episode, known_names)
                        metadata = {**counts.beside(episode.metadata, _PLACE), **place.metadata}
                        info = EpisodeInfo(place.key, _num_frames(episode), metadata, episode.fps)
                        scan.episodes.append(info)
                        scan.specs += specs
                        selected_names = {spec.name for spec in specs}
                        selected_names |= {
                            name for name in episode.videos if self._is_wanted_video(name)
                        }
                        counts.add_episode(episode, group, selected_names)
                counts.add_file(file, path.name, demos)
                check_total(file, demos)

    def account(self) -> Account:
        scan, counts = self.scan_result, self.scan_result.details
        requested = (*(self.features or ()), *(self.map or ()))
        counts.unwritten.check({name: name for name in requested}, str(self.root))
        left_out = left_out_by_pattern(counts.left_out, "datasets")
        for line in unread_files(self.path, counts.is_taken):
            is_stereo = line.pattern.endswith("-stereo.mp4")
            left_out.append(replace(line, reason="both lenses in one frame") if is_stereo else line)
        notes = (*scan.notes, *counts.notes, *counts.unwritten.notes())
        return Account(counts.reason(), counts.places, tuple(left_out), notes)

    def _place(self, path: Path, group: str) -> EpisodeInfo:
        """Return an episode's key, and the metadata by which `frames` finds it."""
        file = path.relative_to(self._folder).as_posix()
        key = key_of(path, self.path)
        if path.name == "trajectory.h5" and path.parent != self._folder:
            key = key_of(path.parent, self._folder, ending=True)  # DROID: the folder is the episode
        if group == "/":
            return EpisodeInfo(key, 0, {"file": file})
        name = group.rpartition("/")[2]
        return EpisodeInfo(f"{key}/{name}", 0, {"file": file, "group": group})

    def _specs(self, episode: Hdf5Episode, path: Path) -> Iterator[FeatureSpec]:
        for name, dataset in self._selected_datasets(episode).items():
            with self.unless_unreadable(name):
                yield self._spec(name, dataset, episode, path)

    def _selected_datasets(self, episode: Hdf5Episode) -> dict[str, Any]:
        selection = self.features
        return {
            name: dataset
            for name, dataset in episode.stored.items()
            if (name not in episode.optional if selection is None else name in selection)
        }

    def _video_specs(self, episode: Hdf5Episode, known_names: Container[str]) -> list[FeatureSpec]:
        """Return specs of videos that no earlier episode has."""
        specs = []
        for name, path in episode.videos.items():
            if self._is_wanted_video(name) and name not in known_names:
                with self.unless_unreadable(name), VideoFile(path) as video:
                    specs.append(video_spec(name, video))
        return specs

    def _is_wanted_video(self, name: str) -> bool:
        return not self.without_video if self.features is None else name in self.features

    def _spec(self, name: str, dataset: Any, episode: Hdf5Episode, path: Path) -> FeatureSpec:
        if dataset.shape == ():
            raise SourceError("dataset without a time axis", feature=name, expected="[T, …]")
        data = first_image(dataset, path)
        if data is not None:
            keep = self.keep_encoded and not self._is_bgr(data, episode, path)
            return embedded_spec(
                name, data, path, keep_encoded=keep, exif=self.exif, palettes=self.palettes
            )
        if episode.metadata.get("compress") and "images" in name.split(".") and dataset.ndim == 2:
            raise SourceError(
                "the first row of a compressed dataset is not an image",
                feature=name,
                frame=0,
                expected="a JPEG or a PNG",
            )
        if is_text(dataset) and dataset.ndim == 1:
            return text_spec(name, path)
        dtype, shape = dataset.dtype, dataset.shape[1:]
        return feature_spec(name, dtype, shape, path, kind=kind_of(name, dtype, shape))

    def _is_bgr(self, data: bytes, episode: Hdf5Episode, path: Path) -> bool:
        order = self.jpeg_order or episode.jpeg_order
        return order == "bgr" and image_format(data, path) == "jpeg"

    def _read(self, episode: Hdf5Episode, path: Path) -> Iterator[Frame]:
        num_frames, declared_bytes, stored_bytes = _num_frames(episode), 0, 0
        readers: dict[str, Iterator[Any]] = {}
        readable_names = {
            self._spec(name, dataset, episode, path).name  # raises like schema()
            for name, dataset in self._selected_datasets(episode).items()
            if name not in self.unreadable
        }
        for name, spec in self.schema().items():
            if name in readable_names:
                dataset = episode.stored[name]
                if dataset.shape[0] != num_frames:
                    declared_by = (
                        ""
                        if episode.num_frames is None
                        else ", as the episode's attributes declare"
                    )
                    raise SourceError(
                        "the number of rows differs from the episode's frames",
                        feature=name,
                        expected=f"{num_frames} rows{declared_by}",
                        got=f"{dataset.shape[0]} rows",
                    )
                declared_bytes += dataset.dtype.itemsize * math.prod(dataset.shape)
                stored_bytes += dataset.id.get_storage_size()
                readers[name] = self._values(dataset, spec, episode, path, num_frames)
        check_frames(num_frames)
        check_decoded(declared_bytes, stored_bytes)
        if not (readers or episode.videos) or not num_frames:
            raise SourceError("the episode has no frames of the selected features")
        for _ in range(num_frames):
            yield {name: next(values) for name, values in readers.items()}

    def _values(
        self,
        dataset: Any,
        spec: FeatureSpec,
        episode: Hdf5Episode,
        path: Path,
        num_frames: int,
    ) -> Iterator[Any]:
        """Yield the feature's checked values."""
        number: int | None = None
        try:
            is_image = first_image(dataset, path) is not None
            is_array = not is_image and not is_text(dataset)
            if is_array:
                check_spec(dataset.dtype, dataset.shape[1:], spec, path)
            if is_image + is_array != (spec.value == "array"):
                raise SourceError("the feature has both text and numbers")
            for number, row in enumerate(read_rows(dataset, path, 0, num_frames)):
                if is_array:
                    yield np.asarray(row, spec.dtype)
                else:
                    yield self._image(row, spec, episode, path) if is_image else _text(row)
                number = None  # a later error may be in the next block
        except SourceError as error:
            error.located(feature=spec.name)
            if number is not None:
                error.located(frame=number)
            raise

    def _image(
        self, row: Any, spec: FeatureSpec, episode: Hdf5Episode, path: Path
    ) -> npt.NDArray[Any] | EncodedImage:
        data = encoded_row(row)
        if data is None:
            raise SourceError("the row is not an image", expected="a JPEG or a PNG")
        value = embedded_value(data, spec, path, self.exif)
        if isinstance(value, np.ndarray) and value.ndim == 3 and self._is_bgr(data, episode, path):
            return np.ascontiguousarray(value[..., ::-1])
        return value


FORMAT = SourceFormat(
    "hdf5",
    "*.hdf5 or *.h5 of ALOHA, robomimic or DROID, or any with --map FEATURE=PATH",
    Hdf5Source,
    options=("map", "jpeg_order", "without_video", "exif"),
    takes_files=True,
    takes_urls=True,
)


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_ENDINGS


def _gops(
    info: EpisodeInfo, spec: FeatureSpec, path: Path, *, in_place: bool
) -> Iterator[Gop | ReferencedGops | DecodedFrame]:
    with located(SourceError, episode=info.key, feature=spec.name):
        with VideoFile(path) as video:
            config, count = own_config(video, spec), 0
            gops: Iterable[Gop | ReferencedGops | DecodedFrame] = (
                [read_references(video, read_table(video), config=config)]
                if in_place
                else read_gops(video, config=config)
            )
            for gop in gops:
                count += int(np.sum(gop.num_frames))
                yield gop
        if count != info.num_frames:
            raise SourceError(
                "the video has another number of frames than the trajectory has rows",
                file=str(path),
                expected=info.num_frames,
                got=count,
            )


def _num_frames(episode: Hdf5Episode) -> int:
    """Return the declared number of frames, or the rows of the actions or of the first dataset."""
    if episode.num_frames is not None:
        return episode.num_frames
    for name in ("action", "actions", *episode.stored):
        if name in episode.stored and episode.stored[name].shape:
            return int(episode.stored[name].shape[0])
    raise SourceError("episode without frames")


def _text(row: Any) -> str:
    try:
        return row if isinstance(row, str) else bytes(row).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError("text is not UTF-8", got=repr(bytes(row)[:80])) from error
