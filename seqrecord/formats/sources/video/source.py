"""Source for folders of video files."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.originals import (
    FirstError,
    InPlace,
    find_files,
    has_file,
    key_of,
)
from seqrecord.formats.sources.common.specs import feature_spec, select_names
from seqrecord.formats.sources.inventory import Account, LeftOut, not_selected, unread_files
from seqrecord.formats.sources.video.file_bytes import COPY
from seqrecord.formats.sources.video.files import VIDEO_ENDINGS, VideoFile
from seqrecord.formats.sources.video.notes import FileNotes
from seqrecord.formats.sources.video.streams import own_config, read_gops, video_spec
from seqrecord.formats.sources.video.tables import PacketTable, read_references, read_table
from seqrecord.in_place.boundary import reader_boundary, skipping_unreadable
from seqrecord.in_place.files import is_file
from seqrecord.in_place.references import external_files, identity_of_files
from seqrecord.store.format.references import ExternalFile
from seqrecord.store.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import FeatureSpec, Frame, Schema
from seqrecord.store.text import counted, repr_of
from seqrecord.video.config import VideoConfig
from seqrecord.video.gops import DecodedFrame, Gop
from seqrecord.video.packets import PASSTHROUGH
from seqrecord.video.references import ReferencedGops

_logger = logging.getLogger("seqrecord")

_IMAGE = "image"
_TIME = "timestamp"


@dataclass(frozen=True)
class VideoSource(InPlace):
    """Video files: MP4, MOV, Matroska, WebM, AVI, MPEG-TS and GIF.

    ::

        ROOT/…/NAME.mp4              an episode `…/NAME` with the feature `image`
        ROOT/…/EPISODE/CAMERA.mp4    with `by_folder`: an episode `…/EPISODE`, one feature per file

    Packets of H.264, HEVC, AV1 and VP9 are stored unchanged. `timestamp` is the display time,
    float64 in seconds from the first frame; with several cameras that of the first one. All cameras
    of an episode must have the same number of frames. Grey video of 10, 12 or 16 bits is uint16
    [H, W], other video uint8 [H, W, 3]. Frames of other codecs, and rotated video, such as portrait
    video of phones, are encoded again; the inventory lists them. All videos of a feature have the
    same size and dtype.

    Args:
        root: folder of videos, or one file.
        features: names to read, in that order; all by default.
        by_folder: one episode per folder, with one camera per file.
        in_place: reference packets instead of copying them.
        stream: number (from 0) or title of the stream to read in files with several video streams.
            By default the first one, with a warning.
        dtype: `uint16` decodes colour video above 8 bits to uint16 [H, W, 3], from 0 to 65535.

    Raises `SourceError` with file and episode for inconsistent or unreadable data.
    """

    by_folder: bool = False
    stream: int | str | None = None
    dtype: str = "uint8"

    takes_files = True
    unpickled = ("_files", "_last_table")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in ("uint8", "uint16"):
            raise SourceError(
                "invalid option dtype", expected="uint8 or uint16", got=repr_of(self.dtype, 50)
            )

    def exists(self) -> bool:
        """Return whether the first files below `root` include a video."""
        return has_file(self.path, _is_video)

    def schema(self) -> Schema:
        return self._schema

    def episodes(self) -> Sequence[EpisodeInfo]:
        return [self._info(key, files) for key, files in self._files.items()]

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        for time in self.timestamps(info):
            yield {_TIME: time} if _TIME in self.schema() else {}

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64]:
        """Return the first camera's display times in seconds from its first frame, float64 [T]."""
        first_path = next(iter(self._files_of(info.key).values()))
        with located(SourceError, episode=info.key), VideoFile(first_path, self.stream) as file:
            is_listed = self.in_place and file.codec in PASSTHROUGH
            ticks = self._table(file).shown_ticks if is_listed else np.array(file.ticks(), np.int64)
            _check_frames(len(ticks), file)
            return np.asarray((ticks - ticks[:1]) * file.tick, np.float64)

    def account(self) -> Account:
        """Report all streams; opens each file."""
        streams, endings, unread_videos = Counter[str](), Counter[str](), Counter[str]()
        irregular = FileNotes()
        for path in self._paths():
            endings[path.suffix] += 1
            with skipping_unreadable(), VideoFile(path, self.stream) as file:
                streams.update(file.other_streams())
                unread_videos.update(file.other_videos)
                irregular.add(file)
                if file.other_videos and self.stream is None:
                    _logger.warning(
                        "%s: %d video streams; reading the first one, choose another by "
                        "--source-option stream=: %s",
                        *(path, len(file.other_videos) + 1, "; ".join(file.other_videos)),
                    )
        names = ", ".join(f"*{ending}" for ending in sorted(endings))
        cameras = set[str]().union(*self._files.values())
        places = {
            name: names if name in (_IMAGE, _TIME) else f"*/{name}.*" for name in self.schema()
        }
        left_out = [
            LeftOut(f"{kind} in {names}", n, "no reader", "streams")
            for kind, n in sorted(streams.items())
        ]
        left_out += [
            LeftOut(f"video {which}", n, "another stream is read", "streams", self.stream is None)
            for which, n in sorted(unread_videos.items())
        ]
        left_out += unread_files(self.path, _is_video)
        left_out += [
            not_selected(f"{name}.*", sum(name in f for f in self._files.values()), "files")
            for name in sorted(cameras - {*self.schema()})
        ]
        count = counted(sum(endings.values()), "file")
        notes = (
            f"feature {name}: {spec.dtype.name} depth without a unit in the files; --unit {name}=mm"
            for name, spec in self.schema().items()
            if spec.kind == "depth" and spec.unit is None
        )
        return Account(f"{count} {names}", places, tuple(left_out), (*notes, *irregular.lines()))

    def is_whole(self) -> bool:
        """Return whether the folder contains nothing but videos."""
        return all(_is_video(path) for path in find_files(self.path, is_file))

    def identity(self) -> str:
        """Return a hash that changes if a video changes, appears or disappears."""
        return identity_of_files(self.path, self._paths())

    def external_files(self) -> dict[str, ExternalFile]:
        """Return the files that GOPs may reference, by path."""
        return external_files(self.path, self._paths())

    def videos(self, info: EpisodeInfo) -> dict[str, Iterator[Gop | ReferencedGops | DecodedFrame]]:
        """Return the GOPs of an episode's cameras; its frames omit these features."""
        files = self._files_of(info.key)
        return {
            name: self._gops(info.key, spec, files)
            for name, spec in self.schema().items()
            if name != _TIME
        }

    def _gops(
        self, key: str, spec: FeatureSpec, files: dict[str, Path]
    ) -> Iterator[Gop | ReferencedGops | DecodedFrame]:
        with located(SourceError, episode=key, feature=spec.name):
            if spec.name not in files:
                folder = next(iter(files.values())).parent
                raise SourceError("the folder lacks a camera's video", file=str(folder))
            with VideoFile(files[spec.name], self.stream) as file:
                config = own_config(file, spec)
                table_count, count = file.known_count(), 0
                parts: Iterator[Gop | ReferencedGops | DecodedFrame]
                keeps_packets = VideoConfig.of(spec) is not None
                if self.in_place and keeps_packets:
                    parts = iter((read_references(file, self._table(file), config=config),))
                else:
                    parts = read_gops(file, config=config, is_deep=not keeps_packets)
                for part in parts:
                    count += int(np.sum(part.num_frames))
                    yield part
                _check_frames(count, file)
                if table_count not in (None, count):
                    raise SourceError(
                        f"damaged video: its tables have another number of frames; {COPY}",
                        file=str(files[spec.name]),
                        expected=table_count,
                        got=count,
                    )

    def _table(self, file: VideoFile) -> PacketTable:
        """Packets of a file, of which references and timestamps are made."""
        if file.path not in self._last_table:
            self._last_table.clear()
            self._last_table[file.path] = read_table(file)
        return self._last_table[file.path]

    @cached_property
    def _last_table(self) -> dict[Path, PacketTable]:
        return {}

    def _paths(self) -> Iterator[Path]:
        return (path for files in self._files.values() for path in files.values())

    @cached_property
    def _files(self) -> dict[str, dict[str, Path]]:
        """Video files by episode and camera."""
        root = self.path
        files_by_episode: dict[str, dict[str, Path]] = {}
        for path in find_files(root, _is_video):
            key = key_of(path.parent, root, ending=True) if self.by_folder else key_of(path, root)
            key = root.name if key == "." else key
            camera = path.stem if self.by_folder else _IMAGE
            episode_files = files_by_episode.setdefault(key, {})
            if camera in episode_files:
                raise SourceError(
                    "videos of the same name",
                    file=str(path),
                    episode=key,
                    got=str(episode_files[camera]),
                )
            episode_files[camera] = path
        if not files_by_episode:
            raise SourceError(
                "no video found", file=str(root), expected=f"*{', *'.join(VIDEO_ENDINGS)}"
            )
        return files_by_episode

    def _files_of(self, key: str) -> dict[str, Path]:
        if key not in self._files:
            raise SourceError("no such episode", file=str(self.root), episode=key)
        return self._files[key]

    def _info(self, key: str, files: dict[str, Path]) -> EpisodeInfo:
        try:
            with reader_boundary(), VideoFile(next(iter(files.values())), self.stream) as file:
                return EpisodeInfo(key, max(file.count(), 1), fps=file.fps)
        except SourceError:
            return EpisodeInfo(key, 1)  # reading raises the error

    @cached_property
    def _schema(self) -> Schema:
        offered = dict.fromkeys([*(n for files in self._files.values() for n in files), _TIME])
        names = select_names(offered, self.features, self.path, "no such feature")
        return Schema([self._spec(name) for name in names])

    def _spec(self, name: str) -> FeatureSpec:
        """Return the spec from the first episode with a readable video."""
        if name == _TIME:
            path = self.path
            return feature_spec(name, np.dtype("f8"), (), path, kind="timestamp", unit="s")
        errors = FirstError()
        for key, files in self._files.items():
            if name in files:
                with (
                    errors.skipped(episode=key, feature=name),
                    VideoFile(files[name], self.stream) as file,
                ):
                    return video_spec(name, file, is_deep=self.dtype == "uint16")
        assert errors.first is not None
        raise errors.first


def _is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_ENDINGS


def _check_frames(count: int, file: VideoFile) -> None:
    """Raise `SourceError` for a video whose edit list, for example, displays no frame."""
    if not count:
        raise SourceError("video without frames", file=str(file.path), expected="at least 1", got=0)


FORMAT = SourceFormat(
    "videos",
    "NAME.mp4, .mov, .mkv, .webm, .avi, .ts or .gif",
    VideoSource,
    options=("by_folder", "stream", "dtype"),
    takes_files=True,
    is_fallback=True,
    takes_urls=True,
)
