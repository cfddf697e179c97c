"""Video that a device decodes by torchcodec, straight into the rows of an arena.

torchcodec reads files. So the packets of a page get a container in memory, without being encoded
anew, of which each page is a file of its own. On a GPU, NVDEC decodes it; on "cpu" FFmpeg does,
which is how this is tested without a GPU.

Nothing that comes back is trusted. The numbers of the frames travel as timestamps. The first frames
of a feature are compared with those of PyAV, for NVDEC knows less of colours than FFmpeg does. For
what torchcodec does not decode, or decodes to something else, PyAV is asked on the host from there
on, which one line in the log says.
"""

from __future__ import annotations

import io
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.container import CONTAINED, TimedPacket, mux_mp4
from seqrecord.engine.device.streams import SideStream
from seqrecord.format.video_pages import VideoPageCodec, VideoReader, VideoTable
from seqrecord.schema import FeatureSpec

_logger = logging.getLogger("seqrecord")

_RATE = 25  # frames a second of the containers: any will do
_AT_ONCE = 8  # frames that torchcodec is asked for: they are on the device beside their rows
_BLOCK = 8  # pixels a side: chroma is spread over pixels in more than one way
_MOST_DIFFERENT = 3.0  # of 255, the mean of blocks: of another matrix or range, or another frame,
# it is 5 and more


class DeviceVideo:
    """Decodes the video of one feature on the device of a stream, as long as that `works`.

    Methods are called by threads of which the device is the current one.
    """

    def __init__(self, spec: FeatureSpec, stream: SideStream) -> None:
        self.stream = stream
        self.works = True
        self.is_checked = False
        self._name = spec.name
        self._lock = threading.Lock()
        # Decoders of pages that are done. What a decoder of a GPU does when it ends must be done
        # with that GPU as the current one, and a finalizer may run in any thread.
        self.ended: deque[Any] = deque()
        self.make: Callable[..., Any] | None = None
        try:
            self.make = _video_decoder()
        except (ImportError, RuntimeError, OSError) as error:  # no FFmpeg, or another torch
            self.give_up(f"torchcodec cannot be imported ({_line(error)})")
            return
        if reason := _refused(VideoConfig.from_json(spec.codec[0])):
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Have PyAV decode from here on, and say so."""
        with self._lock:
            worked, self.works = self.works, False
        if worked:
            say_once(self._name, str(self.stream.device), reason)

    def open(self, codec: VideoPageCodec, page: memoryview, table: VideoTable) -> _PageReader:
        """Reads the frames of a page; see `VideoReader`."""
        return _PageReader(self, codec, page, table)

    def decoder(self, owner: object, contained: bytes) -> Any:
        """A decoder of a file, until `owner` is gone."""
        self.end_decoders()
        assert self.make is not None, "asked for while it works"
        device = self.stream.device
        made = self.make(contained, dimension_order="NHWC", device=device)
        weakref.finalize(owner, self.ended.append, made).atexit = False
        if device.type != "cpu" and getattr(made, "cpu_fallback", False):
            raise ValueError(str(made.cpu_fallback))
        return made

    def end_decoders(self) -> None:
        """End the decoders of pages that are done, once the device is done with their frames.

        For torchcodec gives what NVDEC decodes with to the next decoder, in any thread, while the
        conversion of the last frame may still be queued.
        """
        ended = []
        with suppress(IndexError):  # several threads may end some
            while True:
                ended.append(self.ended.popleft())
        if ended:
            self.stream.mark().wait()


class DeviceFrames:
    """Rows of a video's frames on a device: tensors [height, width, 3] to decode into."""

    def __init__(
        self, video: DeviceVideo, frames: torch.Tensor, rows: npt.NDArray[np.int64]
    ) -> None:
        self.open = video.open
        self._video = video
        self._frames = frames  # [rows of the arena, height, width, 3]
        self._rows = rows

    def __getitem__(self, some: slice) -> list[torch.Tensor]:
        return [self._frames[row] for row in self._rows[some].tolist()]

    def clear(self, first: int, count: int) -> None:
        """Make zeros of rows."""
        with self._video.stream.use():
            for frame in self[first : first + count]:
                frame.zero_()


class Numbered:
    """The packets of a page as those of a file, of which the times tell the frames.

    The frames of a group that are not shown come first, then the others in their order. Between
    two groups the clock goes on by as many ticks as frames are decoded before they are shown: so
    that what looks for a keyframe by one time or by the other finds the same one.
    """

    def __init__(self, page: memoryview, table: VideoTable) -> None:
        counts = np.diff(table.first_packet)
        group = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(table.order))
        hidden = table.order < 0
        num_hidden = np.bincount(group[hidden], minlength=len(counts))
        before = np.cumsum(hidden) - 1 - (np.cumsum(num_hidden) - num_hidden)[group]
        shown = num_hidden[group] + table.order - table.first_frame[group]
        rank = table.first_packet[group] + np.where(hidden, before, shown)
        delay = int((place - rank).max(initial=0))
        self._pts = rank + (group + 1) * delay
        self._dts = place + group * delay
        self._is_key = np.diff(group, prepend=-1) > 0
        self._page, self._table = page, table
        frames = table.order[~hidden]
        self.index = np.empty(len(frames), np.int64)
        """Of each frame of the page, its number in the file."""
        self.index[frames] = rank[~hidden]
        self.ticks = np.empty(len(frames), np.int64)
        """Of each frame of the page, when it is shown, counted from the file's first time."""
        self.ticks[frames] = self._pts[~hidden] - self._pts.min()

    def __len__(self) -> int:
        return len(self._pts)

    def contained(self, codec: str, size: tuple[int, int]) -> bytes:
        """The file."""
        file = io.BytesIO()
        packets = list(self.packets())
        mux_mp4(
            file,
            codec,
            size,
            [packets[0].data],  # it has all parameters; of more, FFmpeg would decode some
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
    """Reads frames of one page, for one thread at a time; see `VideoReader`, which is asked once
    something fails."""

    def __init__(
        self, video: DeviceVideo, codec: VideoPageCodec, page: memoryview, table: VideoTable
    ) -> None:
        self._video = video
        self._of = codec, page, table
        self._numbered = Numbered(page, table)
        self._decoder: Any = None
        self._host: VideoReader | None = None
        self._decoded = 0
        self._next = 0, 0  # the group, and the frame in it, that need no seeking

    @property
    def num_decoded(self) -> int:
        """How many frames were decoded, with those that only others need."""
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
            except Exception as error:  # whatever it is: PyAV knows what is wrong with packets
                self._video.give_up(_line(error))
        self._host = self._host or VideoReader(*self._of)
        self._decoder = None
        codec = self._of[0]
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
        for first in range(0, len(order), _AT_ONCE):
            some = order[first : first + _AT_ONCE]
            frames = [positions[i] for i in some]
            found = self._decoder.get_frames_at(self._numbered.index[frames].tolist())
            ticks = np.rint((found.pts_seconds.cpu().numpy() - begin) * _RATE).astype(np.int64)
            if (ticks != self._numbered.ticks[frames]).any():
                raise ValueError("torchcodec gives other frames than were asked for")
            if not self._video.is_checked:
                self._check(frames, found.data)
            for i, frame in zip(some, found.data, strict=True):
                _tensor(out[i]).copy_(frame)
            self._count(frames)

    def _open(self) -> Any:
        codec, size = self._of[0], (self._of[0].height, self._of[0].width)
        contained = self._numbered.contained(codec.config.codec, size)
        decoder = self._video.decoder(self, contained)
        found = decoder.metadata.height, decoder.metadata.width, len(decoder)
        if found != (*size, len(self._numbered)):
            raise ValueError(
                f"torchcodec finds {found} in a file of {(*size, len(self._numbered))}"
            )
        return decoder

    def _check(self, frames: Sequence[int], found: torch.Tensor) -> None:
        """Raise `ValueError` unless these are about the frames that PyAV gives."""
        host = VideoReader(*self._of)
        codec = self._of[0]
        for frame, given in zip(frames, found.cpu().numpy(), strict=True):
            expected = np.empty((1, codec.height, codec.width, 3), np.uint8)
            host.decode_into([frame], expected)
            difference = _difference(given, expected[0])
            if difference > _MOST_DIFFERENT:
                raise ValueError(f"its frames differ from PyAV's by {difference:.1f} of 255")
        self._video.is_checked = True

    def _count(self, frames: Sequence[int]) -> None:
        """Count frames that were decoded for these, which ascend."""
        first_frame = self._of[2].first_frame
        for frame in frames:
            group = int(np.searchsorted(first_frame, frame, side="right")) - 1
            inside = frame - int(first_frame[group])
            if (group, inside + 1) == self._next:
                continue  # it came twice
            before = self._next[1] if group == self._next[0] and inside >= self._next[1] else 0
            self._decoded += inside + 1 - before
            self._next = group, inside + 1


def _refused(config: VideoConfig) -> str:
    """Why videos of a configuration are not given to torchcodec; empty if they are."""
    if config.codec not in CONTAINED:
        return f"no container for {config.codec}"
    # NVDEC knows what the stream says, and takes BT.601 and the limited range where it says
    # nothing; so does FFmpeg without a container that says more.
    if config.matrix not in (None, 2, 5, 6) or config.range not in (None, "limited"):
        return "colours that the stream itself does not tell"
    return ""


def _difference(some: npt.NDArray[np.uint8], others: npt.NDArray[np.uint8]) -> float:
    """The mean difference of two pictures [height, width, 3], of the means of their blocks."""
    height, width = (max(1, n // _BLOCK) for n in some.shape[:2])
    means = []
    for picture in (some, others):
        cut = picture[: height * _BLOCK, : width * _BLOCK]
        blocks = cut.reshape(height, cut.shape[0] // height, width, cut.shape[1] // width, 3)
        means.append(blocks.mean(axis=(1, 3)))
    return float(np.abs(means[0] - means[1]).mean())


def _tensor(target: Any) -> torch.Tensor:
    return torch.from_numpy(target) if isinstance(target, np.ndarray) else target


def _line(error: BaseException) -> str:
    """The first line of what an error says."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def _video_decoder() -> Callable[..., Any]:
    from torchcodec.decoders import VideoDecoder

    return VideoDecoder  # type: ignore[no-any-return]


@cache
def say_once(feature: str, device: str, reason: str) -> None:
    """Say it once in this process."""
    _logger.warning("video of %r is decoded on the host, not on %s: %s", feature, device, reason)
