"""Protocols of sources, and the description by which `open_source` finds a format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.store.format.inventory import Inventory
from seqrecord.store.format.manifest import CopiedFiles
from seqrecord.store.schema import Block, Frame, Schema
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Storage


@dataclass(frozen=True)
class EpisodeInfo:
    """An episode's key, length and metadata, available before its frames are read.

    Args:
        key: unique name in the dataset, a clean relative path: `abandonedfactory/Easy/P000`.
        num_frames: number of frames that `Source.frames` yields.
        metadata: JSON values: text, numbers, booleans, `None`, lists and dicts. Stored with the
            episode; the loaders' `episodes=` can select by it.
        fps: frames per second, `None` if unknown.
        split: name of the episode's split, if it has one.

    Example:
        from seqrecord.sources import EpisodeInfo

        info = EpisodeInfo("kitchen/take_03", 120, {"operator": "A"}, fps=30.0)
        print(info.key, info.num_frames)
    """

    key: str
    num_frames: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fps: float | None = None
    split: str | None = None


@runtime_checkable
class Source(Protocol):
    """Episodes for `convert`. Any object with these three methods is a source.

    Sources must be picklable: each worker process gets a copy. `TartanAirSource` and `FolderSource`
    are examples; docs/reference/writing.md shows a custom source. Optional methods:

    - `videos(info)` returns a dict: feature name to an iterable of `Gop`. Packets are stored
      unchanged. The GOPs of a feature contain `info.num_frames` frames in total. `frames` omits
      these features; it yields an empty dict per frame if there are no others. `describe_video`
      gives the codec for the schema. A `Gop` in another codec has a `config`.
    - `timestamps(info)` returns the frames' times in seconds, float64 [frames], or `None` for an
      episode without times. `convert` calls it to split at gaps, and for an episode with an `fps`,
      unless `schema` has a timestamp feature `timestamp` or `log_time`: the times may be in a
      feature that is not selected. If `fps` and times disagree, the `fps` is dropped.
    - `account()` returns an `Account`: data in the original that the source does not pack.

    Example:
        import numpy as np
        import seqrecord as sr
        from seqrecord.sources import EpisodeInfo

        class Ramp:
            def schema(self):
                return sr.Schema([sr.FeatureSpec("x", np.dtype("<f4"), (2,))])

            def episodes(self):
                return [EpisodeInfo("ramp", 10)]

            def frames(self, info):
                for i in range(info.num_frames):
                    yield {"x": np.full(2, i, np.float32)}

        sr.convert(Ramp(), "ramp_records")
    """

    def schema(self) -> Schema:
        """Return the features of all episodes: name, dtype, frame shape, kind and unit.

        Variable dimensions are `None`. Leave codecs and groups to the writer, except for images
        that are kept encoded. Open as few files as possible. Raise `SourceError` if the original is
        empty.
        """
        ...

    def episodes(self) -> Sequence[EpisodeInfo]:
        """Return all episodes in their final order, identical in every call.

        Resumed and appending conversions skip keys that are already packed. Raise `SourceError`
        only for problems of the source as a whole.
        """
        ...

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        """Yield an episode's frames in order, as dicts: feature name to array or `EncodedImage`.

        Text features are `str`, bytes features `bytes`. Arrays have the dtype and shape of the
        schema. Omit features that a frame lacks. Frames are consumed one by one: yield each as soon
        as it is read, and keep at most one in memory if possible. An array may be reused for the
        next frame. Raise `SourceError` with file and episode for a missing or broken original;
        `skip_bad_episodes` skips such episodes.
        """
        ...


class StoredSource(Source, Protocol):
    """A source of seqrecord datasets, whose codecs and groups a new dataset keeps by default.

    `convert` depends on this protocol only: writers do not import the reading code.
    """

    @property
    def stored(self) -> Schema:
        """The features of `schema()`, with the codecs and groups of their record files."""
        ...

    @property
    def statistics(self) -> Statistics:
        """Statistics over all episodes of the source; empty if it has none."""
        ...

    @property
    def inventories(self) -> Sequence[Inventory] | None:
        """Inventories to store in place of the source's own account, if any."""
        ...

    @property
    def undecoded_features(self) -> frozenset[str]:
        """Features whose chunks are copied without decoding."""
        ...

    def fitted(
        self, schema: Schema, chunk_frames: int | None, changed: Collection[str] = ()
    ) -> StoredSource:
        """Return the source for a target dataset: features with equal codecs are copied.

        Features whose values are `changed` are not.
        """
        ...

    def decoding_video(self) -> StoredSource:
        """Return the source with frames instead of packets, for sources that copy no chunks."""
        ...

    def copy_lists(self, storage: Storage) -> CopiedFiles | None:
        """Copy the lists of external files that copied chunks refer to; return the copies."""
        ...


class FoundSource(Source, Protocol):
    """A source that `open_source` can recognize."""

    def exists(self) -> bool:
        """Return whether the path contains this format, judged by file names and first bytes.

        `open_source` calls it for every path, so it must be fast and must not accept data of
        another format. Raises `SourceError` for a folder that cannot be listed.
        """
        ...


@dataclass(frozen=True)
class SourceFormat:
    """A source format for `open_source` and `--format`.

    Other packages add formats by entry points in the group `seqrecord.sources`. The entry point has
    the format's name and refers to a `SourceFormat`.

    Args:
        name: value of `--format`: lower case letters, digits, `-` and `_`.
        layout: short description with file names, shown in errors.
        make: creates the source from the path, `features=`, `keep_encoded=` and the given
            `options`. It does not read the data yet.
        options: names of format-specific arguments.
        takes_files: whether the path may be a single file.
        is_fallback: whether the format is tried only if no other one matches.
        takes_urls: whether the source reads files only by functions that also open URLs.

    Example:
        from seqrecord.sources import FolderSource, SourceFormat

        FORMAT = SourceFormat("robot_logs", "LOG/camera/000000.png", FolderSource)
    """

    name: str
    layout: str
    make: Callable[..., FoundSource]
    options: tuple[str, ...] = ()
    takes_files: bool = False
    is_fallback: bool = False
    takes_urls: bool = False


class OtherSizeError(SourceError):
    """A video whose frames have another size than the first one's. `convert` skips the episode."""


def blocks_of(source: Source, info: EpisodeInfo) -> Iterator[Block]:
    """Yield an episode's frames in blocks if the source has a method `blocks`, else one by one."""
    blocks: Callable[[EpisodeInfo], Iterator[Block]] | None = getattr(source, "blocks", None)
    return map(Block.of, source.frames(info)) if blocks is None else blocks(info)


def videos_of(source: Source, info: EpisodeInfo) -> Mapping[str, Iterable[Any]]:
    """Return the parts of an episode's videos by feature, if the source has a method `videos`."""
    videos: Callable[[EpisodeInfo], Mapping[str, Any]] | None = getattr(source, "videos", None)
    return {} if videos is None else videos(info)


def timestamps_of(source: Source, info: EpisodeInfo) -> npt.NDArray[np.float64] | None:
    """Return an episode's frame times in seconds, if the source has a method `timestamps`."""
    timestamps: Callable[[EpisodeInfo], Any] | None = getattr(source, "timestamps", None)
    times: npt.NDArray[np.float64] | None = None if timestamps is None else timestamps(info)
    return times


def chunks_of(source: Source, info: EpisodeInfo) -> Iterable[Any]:
    """Return an episode's chunks and timestamps, if the source has a method `chunks`."""
    chunks: Callable[[EpisodeInfo], Iterable[Any]] | None = getattr(source, "chunks", None)
    return () if chunks is None else chunks(info)
