"""Decodes video on a device by torchcodec, directly into arena rows.

torchcodec reads files, so the packets of a page are wrapped in an in-memory container, without
re-encoding. FFmpeg decodes it: by NVDEC on a GPU, and on "cpu", which allows tests without a GPU.

Results are verified. Frame numbers are encoded as timestamps. The first frames of each feature are
compared with PyAV, because NVDEC supports fewer color spaces than FFmpeg. If torchcodec fails,
decodes on the host, or its frames differ, PyAV decodes on the host from then on, and one line is
logged.
"""

from __future__ import annotations

import io
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.cuda.streams import SideStream
from seqrecord.store.schema import FeatureSpec
from seqrecord.video.config import VideoConfig
from seqrecord.video.container import CONTAINED, TimedPacket, mux_mp4
from seqrecord.video.page_tables import VideoTable
from seqrecord.video.pages import VideoPageCodec, VideoReader

_logger = logging.getLogger("seqrecord")

_RATE = 25  # frames per second of the containers; arbitrary
_FRAMES_PER_CALL = 8  # of torchcodec: they take device memory in addition to their rows
_BLOCK = 8  # pixels per side: decoders interpolate chroma differently
_MAX_DIFFERENCE = 3.0  # of 255, the mean of blocks: of another matrix or range, or another frame,
# it is 5 and more


class DeviceVideo:
    """Decodes the video of one feature on the device of a stream, while `works` is true.

    Methods must be called by threads with the device as current one.
    """

    def __init__(self, spec: FeatureSpec, stream: SideStream) -> None:
        self.stream = stream
        self.works = True
        self.compared_configs: set[VideoConfig] = set()  # of frames that were compared
        self._name = spec.name
        self._lock = threading.Lock()
        # Unused decoders. They must be deleted with their GPU as the current device, but a
        # finalizer may run in any thread.
        # tests/cuda/test_device_video.py::test_decoders_are_destroyed_by_engine_threads
        self.ended_decoders: deque[Any] = deque()
        self.make: Callable[[bytes, torch.device], Any] | None = None
        try:
            self.make = _import_decoder()
        except (ImportError, RuntimeError, OSError) as error:  # no FFmpeg, or another torch
            self.give_up(f"torchcodec cannot be imported ({_line(error)})")
            return
        if reason := _refusal(VideoConfig.from_json(spec.codec[0])):
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Switch to PyAV, and log the reason."""
        with self._lock:
            worked, self.works = self.works, False
        if worked:
            say_once(self._name, str(self.stream.device), reason)

    def open(self, codec: VideoPageCodec, page: memoryview, table: VideoTable) -> _PageReader:
        """Create a reader of a page; see `VideoReader`."""
        return _PageReader(self, codec, page, table)

    def decoder(self, owner: object, mp4_file: bytes) -> Any:
        """Create a decoder of a file, which ends after `owner` is deleted."""
        self.end_decoders()
        assert self.make is not None, "called while torchcodec works"
        decoder = self.make(mp4_file, self.stream.device)
        weakref.finalize(owner, self.ended_decoders.append, decoder).atexit = False
        return decoder

    def end_decoders(self) -> None:
        """End unused decoders, after the device is done with their frames.

        The end of a decoder frees its surfaces, while the conversion of its last frame may still be
        queued.
        """
        decoders = []
        with suppress(IndexError):  # several threads may call this
            while True:
                decoders.append(self.ended_decoders.popleft())
        # tests/cuda/test_device_video.py has
        # test_decoders_are_destroyed_after_their_frames_are_converted.
        if decoders:
            self.stream.mark().wait()


class DeviceFrames:
    """Rows of video frames on a device: tensors [height, width, 3] to decode into."""

    def __init__(
        self, video: DeviceVideo, frames: torch.Tensor, rows: npt.NDArray[np.int64]
    ) -> None:
        self.open_video = video.open
        self._video = video
        self._frames = frames  # [rows of the arena, height, width, 3]
        self._rows = rows

    def __getitem__(self, positions: slice) -> list[torch.Tensor]:
        return [self._frames[row] for row in self._rows[positions].tolist()]

    def clear(self, begin: int, count: int) -> None:
        """Clear rows."""
        with self._video.stream.use():
            for frame in self[begin : begin + count]:
                frame.zero_()


class Numbered:
    """The packets of a page as a file whose timestamps identify the frames.

    Hidden frames of a group come first, then the shown ones in display order. Between groups the
    clock advances by the number of frames decoded before they are shown, so that searches by either
    timestamp find the same keyframe.
    """

    def __init__(self, page: memoryview, table: VideoTable) -> None:
        counts = np.diff(table.first_packet)
        group = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(table.order))
        hidden = table.order < 0
        num_hidden = np.bincount(group[hidden], minlength=len(counts))
        hidden_rank = np.cumsum(hidden) - 1 - (np.cumsum(num_hidden) - num_hidden)[group]
        shown_rank = num_hidden[group] + table.order - table.first_frame[group]
        rank = table.first_packet[group] + np.where(hidden, hidden_rank, shown_rank)
        delay = int((place - rank).max(initial=0))
        self._pts = rank + (group + 1) * delay
        self._dts = place + group * delay
        self._is_key = np.diff(group, prepend=-1) > 0
        self._page, self._table = page, table
        frames = table.order[~hidden]
        self.index = np.empty(len(frames), np.int64)
        """Each page frame's number in the file."""
        self.index[frames] = rank[~hidden]
        self.ticks = np.empty(len(frames), np.int64)
        """Each page frame's display time, relative to the file's first time."""
        self.ticks[frames] = self._pts[~hidden] - self._pts.min()

    def __len__(self) -> int:
        return len(self._pts)

    def contained(self, config: VideoConfig, size: tuple[int, int]) -> bytes:
        """Mux the file."""
        file = io.BytesIO()
        packets = list(self.packets())
        mux_mp4(
            file,
            config,
            size,
            [packets[0].data],  # has all parameters; FFmpeg would decode more packets
            packets,
            tick=Fraction(1, _RATE),
            options={"use_editlist": "0"},
        )
        return file.getvalue()

    def packets(self) -> Iterator[TimedPacket]:
        times = zip(self._pts.tolist(), self._dts.tolist(), self._is_key.tolist(), strict=True)
        edges = pairwise(self._table.offsets.tolist())
        for (start, stop), (pts, dts, is_key) in zip(edges, times, strict=True):
            data = np.frombuffer(self._page[start:stop], np.uint8)
            yield TimedPacket(data, pts, dts, is_key)


class _PageReader:
    """Reads frames of one page; not thread-safe. Falls back to `VideoReader` after an error."""

    def __init__(
        self, video: DeviceVideo, codec: VideoPageCodec, page: memoryview, table: VideoTable
    ) -> None:
        self._video = video
        self._page_parts = codec, page, table
        self._numbered = Numbered(page, table)
        self._decoder: Any = None
        self._host: VideoReader | None = None
        self._decoded = 0
        self._next_place = 0, 0  # group, and frame in it, that need no seek
        self._config = table.config or codec.config

    @property
    def num_decoded(self) -> int:
        """Number of decoded frames, including those decoded only for others."""
        return self._decoded + (0 if self._host is None else self._host.num_decoded)

    def decode_into(
        self, positions: Sequence[int] | range, out: Sequence[Any] | npt.NDArray[Any]
    ) -> None:
        """Decode frames of the page into `out[i]`, [height, width, 3] on the device or the host.

        Raises `CodecError` as `VideoReader` does.
        """
        if self._host is None and self._video.works:
            try:
                with self._video.stream.use():
                    self._decode(positions, out)
                return
            except Exception as error:  # PyAV will raise the precise error
                self._video.give_up(_line(error))
        self._host = self._host or VideoReader(*self._page_parts)
        self._decoder = None
        codec = self._page_parts[0]
        frames = np.empty((len(out), codec.height, codec.width, 3), np.uint8)
        self._host.decode_into(positions, frames)
        with self._video.stream.use():
            for target, frame in zip(out, frames, strict=True):
                _tensor(target).copy_(torch.from_numpy(frame))

    def _decode(
        self, positions: Sequence[int] | range, out: Sequence[Any] | npt.NDArray[Any]
    ) -> None:
        if self._decoder is None:
            self._decoder = self._open()
        order = np.argsort(np.asarray(positions, np.int64), kind="stable").tolist()
        begin = self._decoder.metadata.begin_stream_seconds
        for block_begin in range(0, len(order), _FRAMES_PER_CALL):
            block = order[block_begin : block_begin + _FRAMES_PER_CALL]
            frames = [positions[i] for i in block]
            decoded = self._decoder.get_frames_at(self._numbered.index[frames].tolist())
            ticks = np.rint((decoded.pts_seconds.cpu().numpy() - begin) * _RATE).astype(np.int64)
            if (ticks != self._numbered.ticks[frames]).any():
                # tests/cuda/test_device_video.py::test_wrong_frames_of_torchcodec_are_detected
                raise ValueError("torchcodec returns wrong frames")
            if self._config not in self._video.compared_configs:
                self._check(frames, decoded.data)
            for i, frame in zip(block, decoded.data, strict=True):
                _tensor(out[i]).copy_(frame)
            self._count(frames)

    def _open(self) -> Any:
        if reason := _refusal(self._config):  # of this page
            raise ValueError(reason)
        size = self._page_parts[0].height, self._page_parts[0].width
        mp4_file = self._numbered.contained(self._config, size)
        decoder = self._video.decoder(self, mp4_file)
        form = decoder.metadata.height, decoder.metadata.width, len(decoder)
        if form != (*size, len(self._numbered)):
            raise ValueError(f"torchcodec reads {form} instead of {(*size, len(self._numbered))}")
        return decoder

    def _check(self, frames: Sequence[int], pixels: torch.Tensor) -> None:
        """Raise `ValueError` if the GPU decoded no frame, or frames differ from those of PyAV."""
        if self._video.stream.device.type != "cpu" and self._decoder.cpu_fallback:
            raise ValueError(str(self._decoder.cpu_fallback))
        host = VideoReader(*self._page_parts)
        codec = self._page_parts[0]
        for frame, picture in zip(frames, pixels.cpu().numpy(), strict=True):
            expected = np.empty((1, codec.height, codec.width, 3), np.uint8)
            host.decode_into([frame], expected)
            difference = _difference(picture, expected[0])
            if difference > _MAX_DIFFERENCE:
                raise ValueError(f"its frames differ from PyAV's by {difference:.1f} of 255")
        self._video.compared_configs.add(self._config)

    def _count(self, frames: Sequence[int]) -> None:
        """Count the frames decoded for these ascending frames."""
        first_frame = self._page_parts[2].first_frame
        for frame in frames:
            group = int(np.searchsorted(first_frame, frame, side="right")) - 1
            group_position = frame - int(first_frame[group])
            if (group, group_position + 1) == self._next_place:
                continue  # a duplicate
            next_group, next_position = self._next_place
            is_later = group == next_group and group_position >= next_position
            self._decoded += group_position + 1 - (next_position if is_later else 0)
            self._next_place = group, group_position + 1


def _refusal(config: VideoConfig) -> str:
    """Reason why torchcodec cannot decode a configuration; empty if it can."""
    if config.codec not in CONTAINED:
        return f"no container for {config.codec}"
    if config.is_grey:
        return f"{config.pixel_format} is not decoded to RGB"
    # NVDEC reads the color space of the stream, with BT.601 and limited range as default; so does
    # FFmpeg if the container has none.
    if config.matrix not in (None, 2, 5, 6) or config.range not in (None, "limited"):
        return "the color space is not stored in the stream"
    return ""


def _difference(image: npt.NDArray[np.uint8], expected: npt.NDArray[np.uint8]) -> float:
    """Mean absolute difference of two images [height, width, 3], averaged in blocks."""
    height, width = (max(1, n // _BLOCK) for n in image.shape[:2])
    means = []
    for picture in (image, expected):
        cut = picture[: height * _BLOCK, : width * _BLOCK]
        blocks = cut.reshape(height, cut.shape[0] // height, width, cut.shape[1] // width, 3)
        means.append(blocks.mean(axis=(1, 3)))
    return float(np.abs(means[0] - means[1]).mean())


def _tensor(target: Any) -> torch.Tensor:
    return torch.from_numpy(target) if isinstance(target, np.ndarray) else target


def _line(error: BaseException) -> str:
    """First line of an error's message."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def _import_decoder() -> Callable[[bytes, torch.device], Any]:
    from torchcodec.decoders import VideoDecoder, set_cuda_backend

    def make(mp4_file: bytes, device: torch.device) -> Any:
        # The default, "nvdec", maps a picture after the parser has given its surface to the next
        # one: torchcodec 0.14 returned another frame's pixels under the right timestamp.
        # tests/cuda/test_device_video.py::test_a_gpu_decodes_into_its_rows
        with set_cuda_backend("ffmpeg") if device.type == "cuda" else nullcontext():
            return VideoDecoder(mp4_file, dimension_order="NHWC", device=device)

    return make


@cache
def say_once(feature: str, device: str, reason: str) -> None:
    """Log the fallback once per process."""
    _logger.warning(
        "video feature %r: decoding on the host instead of %s: %s", feature, device, reason
    )
