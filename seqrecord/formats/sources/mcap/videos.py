"""Topics of video: a frame per message, decoded in order.

The format excludes B-frames: https://docs.foxglove.dev/docs/sdk/schemas/compressed-video.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import CodecError, SourceError
from seqrecord.formats.sources.common.specs import check_like_first
from seqrecord.formats.sources.mcap.messages import Message, Packet, decoder
from seqrecord.formats.sources.mcap.recordings import Recording
from seqrecord.store.schema import FeatureSpec
from seqrecord.video.config import VideoConfig
from seqrecord.video.decoding import VideoDecoder, describe_video
from seqrecord.video.gops import Gop
from seqrecord.video.packages import video_errors
from seqrecord.video.packets import packet_format

_MAX_DELAY = 16  # frames that a decoder of H.264 or HEVC retains


def describe(packet: Packet, path: Path) -> tuple[VideoConfig, tuple[int, ...]]:
    """Return the configuration and the shape of a video's frames, from its first keyframe."""
    try:
        shape, config = describe_video(packet.codec, Gop((packet.data,), (0,)))
    except CodecError as error:
        raise SourceError("unsupported video", file=str(path), got=error.got) from error
    return VideoConfig.from_json(config), shape


def is_start(message: Message) -> bool:
    """Return whether a message can be decoded without the one before."""
    packets = [value.data for value in message.values() if isinstance(value.data, Packet)]
    starts = [packet_format(packet.codec, b"").start(packet.data) for packet in packets]
    return all(start.is_closed or start.may_lead for start in starts)


def num_before_start(recording: Recording, topic: str) -> int:
    """Count a topic's messages before its first keyframe."""
    decode, count = decoder(recording, topic), 0
    for _, data, path in recording.messages([topic]):
        if is_start(decode(data, path)):
            break
        count += 1
    return count


class TopicVideo:
    """Decoder of one topic's messages in one recording, in their order.

    Raises `SourceError` with topic and time if a message does not give the next frame.
    """

    def __init__(self, recording: Recording, topic: str, spec: FeatureSpec) -> None:
        self._recording, self._topic, self._spec = recording, topic, spec
        self._decode = decoder(recording, topic)
        self._decoder: VideoDecoder | None = None
        self._sent = self._due = 0  # messages, frames

    def frames(self, data: bytes | None, path: Path) -> list[Any]:
        """Return the frames that a message completes; `None` for one before the first keyframe.

        `data` is `None` after the last message.
        """
        is_last = data is None
        if data is not None:
            message = self._decode(data, path)
            packet = message[""].data
            assert isinstance(packet, Packet)
            data = packet.data
            if self._decoder is None and is_start(message):
                config, shape = describe(packet, path)
                check_like_first("the video", config.dtype, shape, self._spec, path)
                self._decoder = VideoDecoder(config, *shape[:2])
        number = self._sent
        self._sent += not is_last
        if self._decoder is None:
            self._due = self._sent
            return [] if is_last else [None]
        with self._errors(path):
            frames = self._decoder.send(data, number)
            for frame in frames:
                if frame.pts != self._due:
                    raise ValueError(f"the frame of message {frame.pts} comes first")
                self._decoder.check(frame)
                self._due += 1
            if self._sent - self._due > (0 if is_last else _MAX_DELAY):
                raise ValueError("no frame")
        return frames

    def value(self, frame: Any, path: Path) -> dict[str, Any]:
        """Return a frame's pixels by feature."""
        if frame is None:
            return {}
        assert self._decoder is not None
        out = np.empty([n or 0 for n in self._spec.shape], self._spec.dtype)
        with self._errors(path):
            self._decoder.convert(frame, out)
        return {self._spec.name: out}

    @contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except video_errors() as error:
            number = min(self._due, self._sent - 1)
            time = self._recording.times()[self._topic][number]
            raise SourceError(
                "cannot decode a message of a video; --skip-bad-episodes omits the recording",
                file=str(path),
                feature=self._spec.name,
                expected="a frame per message, without B-frames",
                got=f"message {number} of {self._topic} at {time} ns: {error}"[:300],
            ) from error


def decode_videos(
    messages: Iterator[tuple[str, bytes, Path]], videos: Mapping[str, TopicVideo]
) -> Iterator[tuple[str, Any, Path]]:
    """Yield the messages, those of videos as frames; a frame may come some messages later."""
    path = Path()
    for topic, data, path in messages:
        for content in videos[topic].frames(data, path) if topic in videos else (data,):
            yield topic, content, path
    for topic, video in videos.items():
        for content in video.frames(None, path):
            yield topic, content, path
