"""Video of a source: kept packets, frames to encode, and changes of pixels for the inventory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, SourceError, located
from seqrecord.formats.converting.source_resizing import SourceResizing
from seqrecord.in_place.files import opened
from seqrecord.store.format.inventory import Inventory, LeftOut
from seqrecord.store.originals.protocol import Source
from seqrecord.store.schema import Block, FeatureSpec, Schema
from seqrecord.store.text import counted
from seqrecord.store.writing.stored_schema import loses_data
from seqrecord.video.config import VideoConfig
from seqrecord.video.decoding import GopFrames
from seqrecord.video.gops import DecodedFrame, Gop
from seqrecord.video.packets import packet_format
from seqrecord.video.references import ReferencedGops

Part = Gop | ReferencedGops | DecodedFrame

Stream = tuple[str, VideoConfig | None, bytes]
"""A kind of streams: feature, configuration, and the container's codec configuration."""


class Change(NamedTuple):
    """Frames of a feature that are not stored as the original's packets; see `DecodedFrame`."""

    feature: str
    codec: str
    reason: str
    rounded: str


class SourceVideo:
    """The video of one feature and episode, with `num_frames` frames.

    `spec` is the source's feature, `stored_spec` the dataset's. `changes` counts frames. With
    `strict`, a lossy change raises `SourceError`, and so does another number of frames.

    `CodecError` is raised for kept packets without frames for readers: the first frame of each
    episode is read as they do, or of references one of each kind of stream, which are collected
    in `tried_streams`; with `decodes` all frames.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        stored_spec: FeatureSpec,
        num_frames: int,
        *,
        strict: bool,
        decodes: bool,
        tried_streams: set[Stream],
    ) -> None:
        self._remaining_frames = num_frames
        self.changes: Counter[Change] = Counter()
        self.codecs: set[tuple[str, str]] = set()  # that are not the feature's
        self._spec, self._stored_spec, self._strict, self._decodes = (
            spec,
            stored_spec,
            strict,
            decodes,
        )
        self._tried_streams, self._tried_packets = tried_streams, set[Stream]()
        self._config, target = VideoConfig.of(spec), VideoConfig.of(stored_spec)
        self._target_decoding = None if target is None else target.decoding

    def parts(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Yield the parts that a video feature stores; packets keep their own configuration."""
        for part in self._count_frames(parts):
            if isinstance(part, DecodedFrame):
                yield part
                continue
            config = part.config or self._config
            if config is not None and config.decoding != self._target_decoding:
                self.codecs.add((self._spec.name, f"{config.codec} {config.pixel_format}"))
                part = replace(part, config=config)
            if config is not None:
                self._check_frames(replace(part, config=config))
            yield part

    def frames(self, parts: Iterable[Part]) -> Iterator[npt.NDArray[Any]]:
        """Yield decoded frames, for a feature that is not stored as video."""
        depth = None if self._config is None else self._config.depth
        for part in self._count_frames(parts):
            if isinstance(part, DecodedFrame):
                yield part.pixels if depth is None else depth.decode(part.pixels)
                continue
            config = part.config or self._config
            assert isinstance(part, Gop)
            assert config is not None
            yield from self._read_frames(replace(part, config=config))

    def _check_frames(self, part: Gop | ReferencedGops) -> None:
        """Raise `CodecError` if a reader cannot read the first frame, or with `decodes` any."""
        tried_streams, extradata = self._tried_packets, b""
        if isinstance(part, ReferencedGops):
            tried_streams, extradata = self._tried_streams, part.extradata
        stream = self._spec.name, part.config, extradata
        if stream in tried_streams and not self._decodes:
            return
        with located(CodecError, file=getattr(part, "file", None), feature=self._spec.name):
            for gop in _gops(part if self._decodes else _first_frame(part)):
                deque(self._read_frames(gop), 0)
        tried_streams.add(stream)

    def _count_frames(self, parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            self._remaining_frames -= int(np.sum(part.num_frames))
            if isinstance(part, DecodedFrame):
                self._record_change(part)
            yield part
        if self._remaining_frames:  # after errors of the source
            problem = "too many" if self._remaining_frames < 0 else "missing"
            raise SourceError(
                "video and episode have different numbers of frames",
                feature=self._spec.name,
                got=f"{abs(self._remaining_frames)} frames {problem}",
            )

    def _read_frames(self, gop: Gop) -> Iterator[npt.NDArray[Any]]:
        """Yield the frames as readers return them: decoded, and converted to their colours."""
        config, shape = gop.config, [n or 0 for n in self._spec.shape]
        assert config is not None
        height, width = shape[:2]
        frames = GopFrames(config, height, width, gop.packets, gop.order)
        for _ in range(gop.num_frames):
            out = np.empty(shape, config.dtype)
            frames.read_into(out)
            yield out

    def _record_change(self, frame: DecodedFrame) -> None:
        change = Change(self._spec.name, frame.codec, frame.reason, frame.rounded)
        self.changes[change] += 1
        if self._strict and loses_data(self._stored_spec):
            raise SourceError(
                f"encoding the video again would change pixels: {frame.reason}; store it without "
                f"loss (--codec {self._spec.name}=ffv1), or leave out strict (--strict)",
                feature=self._spec.name,
                expected="packets that can be stored, or a lossless codec",
                got=f"{frame.codec}, to {_encoding_text(self._stored_spec)}",
            )


class EpisodeVideos:
    """The videos of a source's episode, each kept as packets or decoded.

    Args:
        parts: the parts of each video, by feature.
        stored_schema: the features of the dataset. A video that is none there is decoded.
        resizing: features with another size, which are decoded too.
        num_frames, tried_streams, checks: as for `SourceVideo`.
    """

    def __init__(
        self,
        source: Source,
        parts: Mapping[str, Iterable[Part]],
        stored_schema: Schema,
        num_frames: int,
        *,
        resizing: SourceResizing | None = None,
        tried_streams: set[Stream],
        **checks: bool,
    ) -> None:
        schema = source.schema() if parts else stored_schema
        self._resizing = resizing
        resized = () if resizing is None else resizing.resized
        self.videos = {
            name: SourceVideo(
                schema[name],
                stored_schema[name],
                num_frames,
                tried_streams=tried_streams,
                **checks,
            )
            for name in parts
        }
        self._decoded = {
            name: self.videos[name].frames(parts[name])
            for name in parts
            if name in resized or VideoConfig.of(stored_schema[name]) is None
        }
        self._packet_parts = {name: parts[name] for name in parts if name not in self._decoded}
        self._stores_frames = len(self._packet_parts) < len(stored_schema.active)

    def parts(self) -> Iterator[tuple[str, Part]]:
        """Yield the parts that are stored as video, with their features."""
        for name, parts in self._packet_parts.items():
            for part in self.videos[name].parts(parts):
                yield name, part

    def blocks(self, block: Block) -> Iterator[Block]:
        """Yield the frames to store of a source's block, with the next ones of decoded videos.

        Nothing, if all features are stored as video.
        """
        blocks = self._with_videos(block) if self._decoded else [block] * self._stores_frames
        for stored_block in blocks:
            yield stored_block if self._resizing is None else self._resizing.block(stored_block)

    def _with_videos(self, block: Block) -> Iterator[Block]:
        for frame in block.frames():
            decoded_values = {name: next(frames) for name, frames in self._decoded.items()}
            yield Block.of({**frame, **decoded_values})

    def finish(self) -> None:
        """Read decoded videos to their ends, which compares their numbers of frames."""
        for frames in self._decoded.values():
            deque(frames, 0)


def _first_frame(part: Gop | ReferencedGops) -> Gop | ReferencedGops:
    """The packets up to the one of the first frame, which alone is shown."""
    if isinstance(part, Gop):
        return part.select_frames(range(1))
    stop = int(np.argmax(part.order == 0)) + 1
    return replace(
        part,
        starts=part.starts[:stop],
        sizes=part.sizes[:stop],
        order=np.where(part.order[:stop] == 0, 0, -1),
        group_starts=part.group_starts[:1],
    )


def _gops(part: Gop | ReferencedGops) -> Iterator[Gop]:
    """Yield the groups of pictures with their packets, read from the external file."""
    if isinstance(part, Gop):
        yield part
        return
    assert part.config is not None
    form = packet_format(part.config.codec, part.extradata)
    places = [*part.group_starts, len(part.starts)]
    with opened(Path(part.file)) as file:
        for begin, stop in pairwise(places):
            packets: list[bytes] = []
            for start, size in zip(part.starts[begin:stop], part.sizes[begin:stop], strict=True):
                file.seek(int(start))
                packets.append(form.bare_packet(file.read(int(size)), not packets))
            try:
                yield Gop(tuple(packets), tuple(part.order[begin:stop].tolist()), part.config)
            except ValueError as error:
                raise CodecError("cannot decode video packets", got=str(error)) from error


def with_videos(
    inventory: Inventory,
    changes: Mapping[Change, int],
    codecs: Mapping[tuple[str, str], int],
    schema: Schema,
    *,
    num_resumed: int,
) -> Inventory:
    """Add changed pixels of videos to an inventory: lossy ones as data left out, others as notes.

    Notes also have the number of episodes in `codecs`, see `JobResult`, and of resumed episodes,
    whose changes are not counted.
    """
    left_out, notes = list[LeftOut](), list[str]()
    for change, count in changes.items():
        name, stored_spec = change.feature, schema[change.feature]
        text = f"{change.codec} encoded as {_encoding_text(stored_spec)}: {change.reason}"
        if loses_data(stored_spec):
            text += f"; --codec {name}=ffv1 keeps them"
            left_out.append(LeftOut(f"exact pixels of {name}", count, text, "frames"))
        else:
            notes.append(f"{name}: {counted(count, 'frame')} without loss, {text}")
        if change.rounded:
            notes.append(f"{name}: {counted(count, 'frame')} of {change.codec}: {change.rounded}")
    if num_resumed and any(map(VideoConfig.of, schema.values())):
        episodes = counted(num_resumed, "resumed episode")
        notes.append(f"changes of pixels not counted in {episodes}")
    notes += (f"{name}: {counted(n, 'episode')} in {codec}" for (name, codec), n in codecs.items())
    return inventory.extended(left_out=left_out, notes=notes)


def notes_of_kept(schema: Schema) -> Iterator[str]:
    """Notes on kept video whose frames have other values than its packets."""
    for name, spec in schema.items():
        config = VideoConfig.of(spec)
        if config is not None and config.depth is not None:
            yield f"{name}: codes of {config.pixel_format} decoded to metres"
        elif config is not None and config.bits > 8 and not config.is_grey:
            yield f"{name}: {config.pixel_format} decoded to uint8, {config.bits} bits rounded to 8"


def _encoding_text(spec: FeatureSpec) -> str:
    if (config := VideoConfig.of(spec)) is None:
        return f"{spec.dtype.name} arrays"
    height, width = (n or 0 for n in spec.shape[:2])
    config = config.encoding(height, width)
    return f"{config.codec} {config.pixel_format}"
