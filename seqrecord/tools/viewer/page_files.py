"""Where a page's pictures and videos are: in the page itself, or in files beside it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from seqrecord.errors import CodecError, DestinationError
from seqrecord.formats.converting.dataset_source import DatasetSource
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.units import exact_rate
from seqrecord.tools.viewer.page_pictures import SPRITE_SUFFIX, encoded_url
from seqrecord.video.config import VideoConfig
from seqrecord.video.container import CONTAINED, TimedPacket, mux_mp4
from seqrecord.video.page_tables import parse_video_page

PAGE = "index.html"

_PICTURES, _VIDEOS, _UNFINISHED = "pictures", "videos", ".unfinished"
_MARK = re.compile(r'<meta name="generator" content="seqrecord [^"]*">')
_TICKS = 512  # of a frame; MP4 keeps the times exactly
_HIDDEN = -1  # frame of a packet without one
_DEFAULT_FPS = 30  # of a video whose episode has no frame rate


class PageFiles(Protocol):
    """Keeps pictures of a page. Threads call `put`."""

    policy: str
    """Sources of pictures and videos beside `data:`, for the page's policy."""

    def put(self, episode: int, feature: int, data: bytes) -> str:
        """Keep an encoded picture and return its address in the page."""

    def write(self, page: bytes) -> Path:
        """Write the page itself; returns its path."""


class SingleFile:
    """A page with its pictures inside."""

    policy = ""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, episode: int, feature: int, data: bytes) -> str:  # noqa: ARG002 - of the protocol
        return encoded_url(data)

    def write(self, page: bytes) -> Path:
        """Replace the file at once, so that a reload never shows half of it."""
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(page)
            temporary.replace(self._path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise DestinationError(
                f"cannot write the page: {error.strerror or error}", file=str(self._path)
            ) from error
        return self._path


class PageFolder:
    """A folder with `index.html`, pictures and videos.

    The folder is new, empty, or has an earlier page, which `write` replaces. Until then, the files
    are in a folder of their own, which is removed on exit. Raises `DestinationError` for any other
    folder.
    """

    policy = " 'self'"

    def __init__(self, path: Path) -> None:
        self._path, self._unfinished = path, path / _UNFINISHED
        try:
            names = {entry.name for entry in path.iterdir()} if path.exists() else set[str]()
            names -= {_UNFINISHED}  # of a process that was killed
            if names and not (names <= {PAGE, _PICTURES, _VIDEOS} and self._has_page()):
                raise DestinationError(
                    "the folder has other files than an earlier page",
                    file=str(path),
                    expected="a new or empty folder",
                )
            self._remove_unfinished()
            for name in (_PICTURES, _VIDEOS):
                (self._unfinished / name).mkdir(parents=True)
        except OSError as error:
            raise _failed(path, error) from error

    def __enter__(self) -> PageFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def put(self, episode: int, feature: int, data: bytes) -> str:
        name = f"{_PICTURES}/{episode:06}-{feature}{SPRITE_SUFFIX}"
        try:
            (self._unfinished / name).write_bytes(data)
        except OSError as error:
            raise _failed(self._path, error) from error
        return name

    def put_video(self, episode: int, number: int, dataset: Dataset, key: str, feature: str) -> str:
        """Write an episode's packets as MP4 without encoding; returns its address in the page.

        Raises `CodecError` for packets that cannot be played alone, and the errors of reading.
        """
        name = f"{_VIDEOS}/{episode:06}-{number}.mp4"
        write_video(self._unfinished / name, dataset, key, feature)
        return name

    def write(self, page: bytes) -> Path:
        """Write the page, then move the files that it shows to it."""
        # The page is first: a folder with an earlier page's files alone would be refused.
        written = SingleFile(self._path / PAGE).write(page)
        try:
            for name in (_PICTURES, _VIDEOS):
                if (self._path / name).exists():
                    shutil.rmtree(self._path / name)
                (self._unfinished / name).rename(self._path / name)
        except OSError as error:
            raise _failed(self._path, error) from error
        return written

    def _has_page(self) -> bool:
        if not (self._path / PAGE).exists():
            return False
        with (self._path / PAGE).open(encoding="utf-8", errors="replace") as file:
            return _MARK.search(file.read(1 << 12)) is not None


def _failed(path: Path, error: OSError) -> DestinationError:
    return DestinationError(
        f"cannot write the page's files: {error.strerror or error}", file=str(path)
    )


def write_video(path: Path, dataset: Dataset, key: str, feature: str) -> None:
    """Write a video feature of an episode as MP4 with the packets as they are.

    Frame i is shown at i frame periods. Hidden frames, such as those outside of a trimmed episode,
    are decoded and not shown: their times are negative, so the muxer writes an edit list that
    begins at frame 0. Raises `CodecError` for missing frames, several configurations, and a codec
    that MP4 lacks.
    """
    spec, episode = dataset.features[feature], dataset.episodes[key]
    config = VideoConfig.from_json(spec.codec[0])
    if config.codec not in CONTAINED:
        raise CodecError("MP4 has no such codec", feature=feature, got=config.codec)
    if not episode.present(feature).all():
        raise CodecError("frames lack the video", episode=key, feature=feature)
    packets: list[tuple[bytes, int, bool]] = []
    num_frames = 0
    for count, page in DatasetSource(dataset).pages(feature, key):
        packets += _packets(page, count, feature, num_frames)
        num_frames += count
    hidden_places = [place for place, (_, frame, _) in enumerate(packets) if frame == _HIDDEN]
    for number, place in enumerate(hidden_places, -len(hidden_places)):
        data, _, is_key = packets[place]
        packets[place] = data, number, is_key
    delay = max(place - frame for place, (_, frame, _) in enumerate(packets))
    keys = [place for place, (_, _, is_key) in enumerate(packets) if is_key]
    rate = exact_rate(episode.fps or _DEFAULT_FPS)
    try:
        mux_mp4(
            str(path),
            config,
            (spec.shape[0] or 0, spec.shape[1] or 0),
            [data for data, _, _ in packets[: [*keys, len(packets)][1]]],
            (
                TimedPacket(data, frame * _TICKS, (place - delay) * _TICKS, is_key)
                for place, (data, frame, is_key) in enumerate(packets)
            ),
            tick=1 / rate / _TICKS,
            duration=_TICKS,
            options={"movflags": "faststart"},
        )
    except CodecError:
        path.unlink(missing_ok=True)
        raise


def _packets(
    page: memoryview, count: int, feature: str, first_frame: int
) -> Iterator[tuple[bytes, int, bool]]:
    """Packets of a page with the numbers of their frames, and whether they are keyframes."""
    table = parse_video_page(page, count, feature)
    if table.config is not None:
        raise CodecError("packets of several configurations", feature=feature)
    starts = set(table.first_packet.tolist())
    frames: list[Any] = np.where(table.order < 0, _HIDDEN, first_frame + table.order).tolist()
    for place, (begin, end) in enumerate(pairwise(table.offsets.tolist())):
        yield bytes(page[begin:end]), frames[place], place in starts
