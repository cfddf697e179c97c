"""Read video files packet by packet, with display times and possible starts of decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.video.containers import check_container
from seqrecord.formats.sources.video.file_bytes import COPY, Contents, StreamFacts
from seqrecord.formats.sources.video.frame_forms import UPRIGHT, VideoForms, orientation_of_matrix
from seqrecord.formats.sources.video.gif_blocks import check_ends
from seqrecord.formats.sources.video.joints import Joints
from seqrecord.formats.sources.video.mp4_boxes import check_boxes
from seqrecord.formats.sources.video.order import MAX_LEADING, FrameOrder, VideoPacket, mark_cuts
from seqrecord.in_place.files import open_file, openable, opened, unreadable
from seqrecord.store.codecs.exif import turned_shape
from seqrecord.store.processes.forks import cached_property
from seqrecord.video.packages import pyav, video_errors
from seqrecord.video.packets import PASSTHROUGH, Start, packet_format

VIDEO_ENDINGS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".ts", ".gif")
"""File name endings of videos, in lower case."""

_CONTAINERS = "mov,matroska,avi,mpegts,gif"  # FFmpeg's formats, none that refers to other files
NO_KEYFRAME = (
    "the video does not begin with a keyframe; copy it from the first one on, "
    "`ffmpeg -i IN -c copy OUT`"
)
_REORDERING = ("h264", "hevc")  # packets of AV1 and VP9 are in display order
_SEEKS = 4
_BUFFER_BYTES = 1 << 20  # read at once from a URL
_MOST_BEFORE = 64  # bytes of container headers in front of a packet
_ZEROS = 4
_DAMAGED = "damaged or truncated video"
_USUAL_RATE = 30.0  # of files that declare none
_MOST_SECONDS = 1e9
_UNKNOWN_MATRIX = 2
_RANGES = {1: "limited", 2: "full"}


class VideoFile:
    """A video stream of a file with one of `VIDEO_ENDINGS`; close it after use.

    ::

        codec, extradata    FFmpeg's codec name, and the container's codec parameters
        tick                seconds
        coded_size          height and width in pixels
        turn                EXIF orientation applied by players
        size                height and width of turned frames
        pixel_format        FFmpeg's name, or None if the container does not declare it
        matrix              number (H.273) of the YUV to RGB matrix, or None
        color_range         "limited" or "full", or None
        fps                 average frames per second, or None
        other_videos        descriptions of the file's other video streams

    `stream` is a video stream's number, from 0, or its title; the first one by default. Cover
    pictures do not count.

    Raises `SourceError` for other files, and for a missing stream.
    """

    _is_unread: bool
    other_videos: tuple[str, ...]

    def __init__(self, path: Path, stream: int | str | None = None) -> None:
        self.path = path
        self._requested_stream = stream
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
            is_kept = self.codec in PASSTHROUGH
            self._format = packet_format(self.codec, self.extradata) if is_kept else None
            colours = {"matrix": self.matrix, "color_range": self.color_range}
            self.forms = (
                VideoForms(self.codec, self._format, path, colours) if self._format else None
            )
            self._order: FrameOrder | None = None
            if self._format and self.codec in _REORDERING:
                declared = context.has_b_frames
                self._order = FrameOrder(self.codec, self._format, path, is_declared=declared)
        except ValueError as error:
            self.close()
            raise SourceError(f"damaged video: {error}", file=str(path)) from error

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.close_bytes_file()
        if self._remote is not None:
            self._remote.close()

    def close_bytes_file(self) -> None:
        """Close the file of `place_of`, until its next call."""
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    @cached_property
    def turn(self) -> int:
        """EXIF orientation; decodes the first frame, which alone has the matrix in PyAV.

        Raises `SourceError` for other angles than multiples of 90 degrees.
        """
        self._from_start()
        context = self._stream.codec_context
        context.thread_count, context.thread_type = 1, "NONE"
        with self._errors(_DAMAGED):
            for packet in islice(self._file.demux(self._stream), MAX_LEADING):
                with suppress(*video_errors()):  # raised by reading the frames
                    start = self._format and self._format.start(bytes(packet))
                    if self.forms is not None and start and (start.is_closed or start.may_lead):
                        self.forms.check(bytes(packet), 0, is_key=True)
                    for frame in packet.decode():
                        matrix = frame.side_data.get("DISPLAYMATRIX")
                        with located(SourceError, file=str(self.path)):
                            return (
                                UPRIGHT if matrix is None else orientation_of_matrix(bytes(matrix))
                            )
        return UPRIGHT

    @property
    def size(self) -> tuple[int, ...]:
        return turned_shape(self.coded_size, self.turn)

    def check(self) -> None:
        """Raise `SourceError` unless the file contains what its container declares."""
        _ = self.contents

    def ticks(self) -> list[int]:
        """Return all frames' display times in `tick` units, ascending. Reads the whole file."""
        return sorted(packet.tick for packet in mark_cuts(self._from(None)) if packet.is_shown)

    def count(self) -> int:
        """Return the number of displayed frames, from an MP4's tables or by reading the file."""
        table_count = self.known_count()
        return len(self.ticks()) if table_count is None else table_count

    def known_count(self) -> int | None:
        """Return the number of displayed frames if the tables of an MP4 contain it, else `None`."""
        entries = self._entries()
        return sum(not entry.is_discard for entry in entries) if entries else None

    def entries(self) -> Any:
        """Return an MP4's packet table with display times: a list of PyAV's `IndexEntry`.

        Empty if the tables are incomplete.
        """
        self.check()
        # Entries have decoding times, also where encoders delay all frames by the same time.
        is_delayed = self._stream.codec_context.has_b_frames or self.contents.has_offsets
        return () if is_delayed else self._entries()

    def _entries(self) -> Any:
        if "mov" in self._file.format.name and self.codec in ("h264", "av1", "vp9"):
            with self._errors("damaged video"):
                entries = getattr(self._stream, "index_entries", ())  # PyAV 17 and later
                # In fragmented files, tables cover only the fragments read so far.
                if 0 < len(entries) <= self._stream.frames:
                    return entries
        return ()

    @cached_property
    def contents(self) -> Contents:
        """What the container declares, compared with the file's bytes.

        Raises `SourceError` for a file that ends early or is damaged.
        """
        declared = next((v for k, v in self._stream.metadata.items() if k[:8] == "DURATION"), "")
        stream = StreamFacts(
            *(self._stream.index, self._stream.id, self._number),
            end=_seconds_of(declared),
            step=1 / (self.fps or _USUAL_RATE),
        )
        with located(SourceError, file=str(self.path)):
            return check_container(self._file.format.name, self.path, stream, self._remote)

    def other_streams(self) -> list[str]:
        """Return the types of the file's non-video streams: "audio", "subtitle", "data", …"""
        return [stream.type or "data" for stream in self._file.streams if stream.type != "video"]

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes."""
        return int(self._file.size)

    def bare_packet(self, data: bytes, is_start: bool) -> bytes:
        """Return a packet as decoders take it; for kept codecs without container framing."""
        return self._format.bare_packet(data, is_start) if self._format else data

    def packets(
        self, first_tick: int | None = None, *, any_order: bool = False
    ) -> Iterator[VideoPacket]:
        """Yield packets in decoding order, from a point from which tick `first_tick` is decodable.

        By default, or if no such point is found, from the beginning. The first packet is a cut
        unless decoding is impossible even there. `any_order` is as for `FrameOrder.prove_order`.
        Only one iteration at a time.
        """
        packets = mark_cuts(self._from(first_tick))
        return self._order.prove_order(packets, any_order=any_order) if self._order else packets

    def _from(self, first_tick: int | None) -> Iterator[VideoPacket]:
        self.check()
        second = max(1, round(1 / self.tick))
        target = first_tick or 0
        for attempt in range(0 if first_tick is None else _SEEKS):
            packets = self._seek(target)
            head = next(packets, None)
            if head is None:
                break
            if head.tick <= (first_tick or 0) and (head.start.is_closed or head.start.may_lead):
                return chain([head], packets)
            # Containers seek by decoding time, which may be earlier.
            target = min(target, head.tick) - second * 4**attempt
        self._from_start()
        return self._demux(self.contents.packets)

    def _from_start(self) -> None:
        if not self._is_unread:
            self.close()
            self._open()
        self._is_unread = False

    def _open(self) -> None:
        try:
            openable_file = openable(self.path)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self._remote = None if isinstance(openable_file, Path) else openable_file
        if self._remote is None:
            with opened(self.path) as file:
                check_boxes(file, self.path, reads_all=True)
                self._check_gif(file)
        else:
            check_boxes(self._remote, self.path, reads_all=False)
            self._check_gif(self._remote)
            self._remote.seek(0)
        with self._errors("invalid or unsupported video"):
            self._file: Any = pyav().open(
                str(openable_file) if isinstance(openable_file, Path) else openable_file,
                metadata_errors="ignore",
                buffer_size=_BUFFER_BYTES,
                options={"format_whitelist": _CONTAINERS, "protocol_whitelist": "file"},
            )
        try:
            self._stream = self._select_stream()
        except SourceError:
            self.close()
            raise
        self._is_unread = True

    def _check_gif(self, file: BinaryIO) -> None:
        if self.path.suffix.lower() == ".gif":
            file.seek(0)
            check_ends(file, self.path)

    def _select_stream(self) -> Any:
        """Return the selected stream."""
        pictures = pyav().stream.Disposition.attached_pic
        streams = [
            stream for stream in self._file.streams.video if not stream.disposition & pictures
        ]
        names = [_title(stream) for stream in streams]
        descriptions = [f"stream={i} ({_description(stream)})" for i, stream in enumerate(streams)]
        number = self._requested_stream or 0
        if isinstance(number, str):
            number = names.index(number) if names.count(number) == 1 else -1
        if self._requested_stream is not None and not 0 <= number < len(streams):
            raise SourceError(
                "no such video stream",
                file=str(self.path),
                expected="; ".join(descriptions) or "a video stream",
                got=f"stream={self._requested_stream}",
            )
        if not streams or streams[number].codec_context is None:
            raise SourceError("no video of a supported codec in the file", file=str(self.path))
        self._number = number
        self.other_videos = tuple(text for i, text in enumerate(descriptions) if i != number)
        return streams[number]

    def _seek(self, tick: int) -> Iterator[VideoPacket]:
        """Yield packets from a point before `tick`; empty if the container cannot seek."""
        try:
            self._file.seek(tick, stream=self._stream)
        except pyav().FFmpegError:
            return iter(())
        self._is_unread = False
        return self._demux()

    def _demux(self, expected: int | None = None) -> Iterator[VideoPacket]:
        is_ts = self._file.format.name == "mpegts"
        joints = Joints(self.path, self.fps, self.tick, can_join=is_ts)
        with self._errors(_DAMAGED):
            for packet in self._file.demux(self._stream):
                if not packet.size:
                    continue  # end of the stream
                data = bytes(packet)
                tick = joints.tick(packet)
                if self._format and _is_hole(data):
                    message = f"damaged video: a packet begins with zeros; {COPY}"
                    raise SourceError(message, file=str(self.path), offset=packet.pos)
                start = self._format.start(data) if self._format else Start()
                is_start = start.is_closed or start.may_lead
                if self.forms is not None and (is_start or self.codec == "vp9"):
                    self.forms.check(data, tick * self.tick, is_key=is_start)
                is_shown = not (packet.is_discard or start.is_hidden)
                is_key = packet.is_keyframe
                yield VideoPacket(data, tick, start, is_key, is_shown, pos=packet.pos)
            joints.check_end(expected)

    def place_of(self, packet: VideoPacket) -> tuple[int, int]:
        """Return a packet's offset and number of bytes in the file.

        Raises `SourceError` if the file does not contain the packet's bytes unchanged.
        """
        if self._raw is None:
            self._raw = open_file(self.path)
        self._raw.seek(packet.pos or 0)
        at = self._raw.read(len(packet.data) + _MOST_BEFORE).find(packet.data)
        if packet.pos is None or at < 0:
            raise SourceError(
                "cannot read the video in place: the file stores its packets in another form",
                file=str(self.path),
                offset=packet.pos,
            )
        return packet.pos + at, len(packet.data)

    @contextmanager
    def _errors(self, message: str) -> Iterator[None]:
        """Convert FFmpeg's errors to `SourceError`."""
        try:
            yield
        except pyav().FFmpegError as error:
            raise SourceError(
                message, file=str(self.path), got=(error.strerror or str(error))[:200]
            ) from error


def _is_hole(data: bytes) -> bool:
    """Return whether a packet of a kept codec begins with zeros, which are no start code."""
    return not any(data[:_ZEROS]) and data.lstrip(b"\0")[:1] != b"\1"


def _seconds_of(text: str) -> float:
    """Return the seconds of "01:02:03.5", a tag of Matroska; 0 for other texts."""
    try:
        hours, minutes, seconds = (float(part) for part in text.split(":"))
    except ValueError:
        return 0.0
    end = 3600 * hours + 60 * minutes + seconds
    return end if 0 <= end < _MOST_SECONDS else 0.0


def _title(stream: Any) -> str:
    return str(stream.metadata.get("title", ""))[:100]


def _description(stream: Any) -> str:
    context, title = stream.codec_context, _title(stream)
    text = f"{context.name} {context.width}x{context.height}" if context else "unknown codec"
    return f"{title!r}, {text}" if title else text
