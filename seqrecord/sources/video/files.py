"""Video files, packet by packet: when each frame is shown, and where a decoder can begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from seqrecord.codecs.video.packages import pyav, video_errors
from seqrecord.codecs.video.packets import PASSTHROUGH, Start, packet_format
from seqrecord.errors import SourceError, located
from seqrecord.processes.forks import cached_property
from seqrecord.sources.common.files import open_file, openable, opened, unreadable
from seqrecord.sources.video.frames import UPRIGHT, Turn, VideoForms
from seqrecord.sources.video.mp4_boxes import check_boxes

VIDEO_ENDINGS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi")
"""Of the names of video files, in lower case."""

_CONTAINERS = "mov,matroska,avi"  # of FFmpeg: none that names other files, as playlists do
_SEEKS = 4
_BUFFER_BYTES = 1 << 20  # read at once from a file of a URL
_MOST_BEFORE = 64  # bytes of a container between a packet's place and the packet
_MAX_LEADING = 64  # packets between a keyframe and the first one that is shown after it
_UNKNOWN_MATRIX = 2
_RANGES = {1: "limited", 2: "full"}


class VideoPacket(NamedTuple):
    """A packet as its container has it.

    Args:
        data: its bytes.
        tick: when its frame is shown, in `VideoFile.tick` seconds.
        start: what it begins.
        is_key: whether the container calls it a keyframe.
        is_shown: whether its frame is shown; an edit list hides frames.
        is_cut: whether a decoder can begin with it.
        pos: where it lies in the file, or what its container puts before it.
    """

    data: bytes
    tick: int
    start: Start
    is_key: bool
    is_shown: bool
    is_cut: bool = False
    pos: int | None = None


class VideoFile:
    """A video stream of an MP4, MOV, Matroska, WebM or AVI file; close it after use.

    ::

        codec, extradata    FFmpeg's name, and what the container says of the codec beside it
        tick                seconds
        coded_size          height and width in pixels
        turn                how players turn its frames
        size                height and width of frames that are turned so
        pixel_format        as FFmpeg calls it; None if the container does not say
        matrix              the number (H.273) of the matrix from YUV to RGB, or None
        color_range         "limited" or "full", or None
        fps                 frames a second, on average, or None
        others              the file's other streams of video, in words

    `stream` is the number of the stream among those of video, from 0, or its title; by default it
    is the first one. Cover pictures are none.

    Raises `SourceError` for a file that is none of these, or has no such video.
    """

    _is_unread: bool
    others: tuple[str, ...]

    def __init__(self, path: Path, stream: int | str | None = None) -> None:
        self.path = path
        self._wanted = stream
        self._raw: Any = None
        self._is_unread = True
        self._open()
        context = self._stream.codec_context
        self.codec: str = context.codec.canonical_name
        self.extradata = bytes(context.extradata or b"")
        self.tick = float(self._stream.time_base)
        self.coded_size: tuple[int, int] = (context.height, context.width)
        self.pixel_format: str | None = context.pix_fmt
        matrix, rate = int(context.colorspace), self._stream.average_rate
        self.matrix = None if matrix == _UNKNOWN_MATRIX else matrix
        self.color_range = _RANGES.get(int(context.color_range))
        self.fps = float(rate) if rate and 0 < rate < 1e6 else None
        try:
            kept = self.codec in PASSTHROUGH
            self._format = packet_format(self.codec, self.extradata) if kept else None
            self.forms = VideoForms(self.codec, self._format, path) if self._format else None
        except ValueError as error:
            self.close()
            raise SourceError(f"a damaged video: {error}", file=str(path)) from error

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        if self._raw is not None:
            self._raw.close()
            self._raw = None
        if self._remote is not None:
            self._remote.close()

    @cached_property
    def turn(self) -> Turn:
        """Decodes the first frame: PyAV tells it of no other.

        Raises `SourceError` for a turn that is not by quarters.
        """
        self._from_start()
        context = self._stream.codec_context
        context.thread_count, context.thread_type = 1, "NONE"
        for packet in islice(self._file.demux(self._stream), _MAX_LEADING):
            with suppress(*video_errors()):  # who reads the frames says what is wrong with them
                start = self._format and self._format.start(bytes(packet))
                if self.forms is not None and start and (start.is_closed or start.may_lead):
                    self.forms.check(bytes(packet), 0, is_key=True)
                for frame in packet.decode():
                    matrix = frame.side_data.get("DISPLAYMATRIX")
                    with located(SourceError, file=str(self.path)):
                        return UPRIGHT if matrix is None else Turn.of(bytes(matrix))
        return UPRIGHT

    @property
    def size(self) -> tuple[int, int]:
        return self.turn.size(*self.coded_size)

    def ticks(self) -> list[int]:
        """When each frame is shown, ascending, in units of `tick`. Reads the whole file."""
        return sorted(packet.tick for packet in self.packets() if packet.is_shown)

    def count(self) -> int:
        """How many frames are shown: from the tables of an MP4, else by reading the whole file."""
        known = self.known_count()
        return len(self.ticks()) if known is None else known

    def known_count(self) -> int | None:
        """The number of displayed frames, if the tables of an MP4 have it."""
        entries = self._entries()
        return sum(not entry.is_discard for entry in entries) if entries else None

    def entries(self) -> Any:
        """What an MP4 says of its packets without them, and with the times of their frames: a list
        of PyAV's `IndexEntry`; empty where it does not tell all of that."""
        # Where frames are shown in another order, entries have the times of decoding.
        return () if self._stream.codec_context.has_b_frames else self._entries()

    def _entries(self) -> Any:
        if "mov" in self._file.format.name and self.codec in ("h264", "av1", "vp9"):
            with self._errors("a damaged video"):
                entries = getattr(self._stream, "index_entries", ())  # PyAV 17 and later
                # The tables of a file of fragments are those of the fragments that were looked at.
                if 0 < len(entries) <= self._stream.frames:
                    return entries
        return ()

    def other_streams(self) -> list[str]:
        """The kinds of the file's streams that are no video: "audio", "subtitle", "data", …"""
        return [each.type or "data" for each in self._file.streams if each.type != "video"]

    @property
    def nbytes(self) -> int:
        """How long the file is."""
        return int(self._file.size)

    def bare_packet(self, data: bytes, is_start: bool) -> bytes:
        """A packet as a decoder takes it: without a container, where its codec is kept."""
        return self._format.bare_packet(data, is_start) if self._format else data

    def packets(self, first: int | None = None) -> Iterator[VideoPacket]:
        """The packets in decoding order, from a place on from which the frame at tick `first`
        can be decoded; by default, and where no such place is found, from the file's beginning.

        The first packet is a cut, unless no decoder can begin even there. One walk at a time.
        """
        return _marked(self._from(first))

    def _from(self, first: int | None) -> Iterator[VideoPacket]:
        second = max(1, round(1 / self.tick))
        target = first or 0
        for attempt in range(0 if first is None else _SEEKS):
            packets = self._seek(target)
            head = next(packets, None)
            if head is None:
                break
            if head.tick <= (first or 0) and (head.start.is_closed or head.start.may_lead):
                return chain([head], packets)
            # Containers are sought by decoding times, which may be earlier.
            target = min(target, head.tick) - second * 4**attempt
        self._from_start()
        return self._demux()

    def _from_start(self) -> None:
        if not self._is_unread:
            self.close()
            self._open()
        self._is_unread = False

    def _open(self) -> None:
        try:
            where = openable(self.path)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._remote = None if isinstance(where, Path) else where
        if self._remote is None:
            with opened(self.path) as file:
                check_boxes(file, self.path, reads_all=True)
        else:
            check_boxes(self._remote, self.path, reads_all=False)
            self._remote.seek(0)
        with self._errors("not a video that can be read"):
            self._file: Any = pyav().open(
                str(where) if isinstance(where, Path) else where,
                metadata_errors="ignore",
                buffer_size=_BUFFER_BYTES,
                options={"format_whitelist": _CONTAINERS, "protocol_whitelist": "file"},
            )
        try:
            self._stream = self._chosen()
        except SourceError:
            self.close()
            raise
        self._is_unread = True

    def _chosen(self) -> Any:
        """The stream that is wanted."""
        pictures = pyav().stream.Disposition.attached_pic
        streams = [each for each in self._file.streams.video if not each.disposition & pictures]
        names = [_title(each) for each in streams]
        shown = [f"stream={i} ({_described(each)})" for i, each in enumerate(streams)]
        number = self._wanted or 0
        if isinstance(number, str):
            number = names.index(number) if names.count(number) == 1 else -1
        if self._wanted is not None and not 0 <= number < len(streams):
            raise SourceError(
                "no such stream of video",
                file=str(self.path),
                expected="; ".join(shown) or "a stream of video",
                got=f"stream={self._wanted}",
            )
        if not streams or streams[number].codec_context is None:
            raise SourceError("a file without video of a known codec", file=str(self.path))
        self.others = tuple(text for i, text in enumerate(shown) if i != number)
        return streams[number]

    def _seek(self, tick: int) -> Iterator[VideoPacket]:
        """From a place before `tick`; nothing where the container finds none."""
        try:
            self._file.seek(tick, stream=self._stream)
        except pyav().FFmpegError:
            return iter(())
        self._is_unread = False
        return self._demux()

    def _demux(self) -> Iterator[VideoPacket]:
        with self._errors("a damaged or truncated video"):
            for packet in self._file.demux(self._stream):
                if not packet.size:
                    continue  # the end
                data = bytes(packet)
                if packet.is_corrupt:
                    raise SourceError("a truncated video", file=str(self.path), offset=packet.pos)
                if packet.pts is None:
                    raise SourceError("a video frame without a time", file=str(self.path))
                start = self._format.start(data) if self._format else Start()
                is_start = start.is_closed or start.may_lead
                if self.forms is not None and (is_start or self.codec == "vp9"):
                    self.forms.check(data, packet.pts * self.tick, is_key=is_start)
                shown = not (packet.is_discard or start.is_hidden)
                key = packet.is_keyframe
                yield VideoPacket(data, packet.pts, start, key, shown, pos=packet.pos)

    def place_of(self, packet: VideoPacket) -> tuple[int, int]:
        """The first byte of a packet in the file, and how many there are.

        Raises `SourceError` for one that the file does not have as it is.
        """
        if self._raw is None:
            self._raw = open_file(self.path)
        self._raw.seek(packet.pos or 0)
        at = self._raw.read(len(packet.data) + _MOST_BEFORE).find(packet.data)
        if packet.pos is None or at < 0:
            raise SourceError(
                "a packet lies otherwise in its file: this video cannot be read in place",
                file=str(self.path),
                offset=packet.pos,
            )
        return packet.pos + at, len(packet.data)

    @contextmanager
    def _errors(self, message: str) -> Iterator[None]:
        """FFmpeg's errors as `SourceError`."""
        try:
            yield
        except pyav().FFmpegError as error:
            raise SourceError(
                message, file=str(self.path), got=(error.strerror or str(error))[:200]
            ) from error


def _title(stream: Any) -> str:
    return str(stream.metadata.get("title", ""))[:100]


def _described(stream: Any) -> str:
    context, title = stream.codec_context, _title(stream)
    what = f"{context.name} {context.width}x{context.height}" if context else "unknown codec"
    return f"{title!r}, {what}" if title else what


def _marked(packets: Iterator[VideoPacket]) -> Iterator[VideoPacket]:
    """The packets with `is_cut`, which for some depends on those that follow.

    Frames that are broken after a start (RASL frames of HEVC) follow it and are shown before it. So
    a decoder can begin there if there are none, and at the first packet if it leaves them out.
    """
    held: list[VideoPacket] = []  # a start that may be a cut, and what follows
    first = next(packets, None)
    if first is None:
        return
    yield first._replace(is_cut=first.start.is_closed or first.start.may_lead)
    is_dropping = first.start.may_lead
    for packet in packets:
        if is_dropping and packet.start.is_broken:
            continue
        is_dropping = is_dropping and not (packet.start.is_closed or packet.start.may_lead)
        if held:
            if packet.tick < held[0].tick and len(held) < _MAX_LEADING:
                held.append(packet)
                if packet.start.is_broken:
                    yield from _released(held, False)
                continue
            yield from _released(held, len(held) < _MAX_LEADING)
        if packet.start.may_lead:
            held.append(packet)
        elif packet.start.is_closed:
            yield packet._replace(is_cut=True)
        else:
            yield packet
    yield from _released(held, True)


def _released(held: list[VideoPacket], is_cut: bool) -> Iterator[VideoPacket]:
    if held:
        yield held[0]._replace(is_cut=is_cut)
        yield from held[1:]
    held.clear()
