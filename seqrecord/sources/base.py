"""The protocols of sources: where episodes come from, and how a kind of source is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from seqrecord.format.inventory import Inventory
from seqrecord.format.manifest import CopiedFiles
from seqrecord.schema import Block, Frame, Schema
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import Storage


@dataclass(frozen=True)
class EpisodeInfo:
    """What is known of an episode before its frames are read.

    Args:
        key: its name in the dataset, unique there: a clean relative path, as
            `abandonedfactory/Easy/P000`.
        num_frames: how many frames `Source.frames` yields.
        metadata: JSON: text, numbers, booleans, `None`, lists and dicts of them. The dataset keeps
            it, and `episodes=` of the loaders can choose by it.
        fps: frames a second, `None` if nobody knows.
        split: the name of the split that it is in, if it is in one.
    """

    key: str
    num_frames: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fps: float | None = None
    split: str | None = None


@runtime_checkable
class Source(Protocol):
    """Where `convert` gets episodes from. Any object with these three methods is a source.

    A source of video has a fourth, `videos(info)`: of one episode a dict from the names of features
    to iterables of `Gop`, packets that are kept as they are. Together the GOPs of a feature show
    `info.num_frames` frames, and `frames` leaves these features out; where there are no others, it
    yields an empty dict for each frame. The schema has such a feature's codec, see
    `seqrecord.sources.describe_video`.

    A source that knows when frames were recorded may have `timestamps(info)`, float64 [frames] in
    seconds. It is asked if no feature of the schema is a timestamp, and the episode has an `fps`:
    timestamps that contradict it take it away.

    A source with the method `account()`, which returns an `Account`, reports possible data that it
    does not pack.

    It must be picklable, since each worker process gets a copy. `TartanAirSource` and
    `FolderSource` are sources, and docs/reference/writing.md has an example of one's own.
    """

    def schema(self) -> Schema:
        """The features of all episodes: name, dtype, frame shape (`None` for what varies), kind
        and unit.

        Codecs and groups are the writer's choice, so leave them out, but for images that stay
        encoded. Look at as few files as possible. Raises `SourceError` where there is nothing to
        read.
        """
        ...

    def episodes(self) -> Sequence[EpisodeInfo]:
        """All episodes, in their final order, which must be the same in every call.

        A conversion that resumes or appends skips those whose keys are there. Raises `SourceError`
        only for what concerns the source as a whole.
        """
        ...

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        """One episode's frames in order: feature name to array, or to an `EncodedImage`.

        Of a text feature it is a `str`, of a bytes feature `bytes`. An array has the dtype and
        shape that the schema says. A feature that a frame lacks is left out. Frames are taken one
        by one: yield them, and hold no more than one in memory where that is possible; an array may
        be filled again for the next frame. Raises `SourceError` that names the file and the episode
        for an original that is missing or broken, which `skip_bad_episodes` leaves out.
        """
        ...


class StoredSource(Source, Protocol):
    """A source of one or more datasets: a new dataset stores its features as they do, by default.

    `convert` imports none, since a writer does without all that reads datasets.
    """

    @property
    def stored(self) -> Schema:
        """The features of `schema()` with their codecs and groups."""
        ...

    @property
    def statistics(self) -> Statistics:
        """Those of all its episodes; empty where it has none."""
        ...

    @property
    def inventories(self) -> Sequence[Inventory] | None:
        """Inventories to keep instead of an account of the source, if any."""
        ...

    @property
    def copied_features(self) -> frozenset[str]:
        """The features whose chunks are copied."""
        ...

    def fitted(self, schema: Schema, chunk_frames: int | None) -> StoredSource:
        """The source for a dataset of this schema: it copies what is stored in the same codecs."""
        ...

    def copy_lists(self, storage: Storage) -> CopiedFiles | None:
        """Copy the lists of external files to which copied chunks refer; the copied files."""
        ...


class FoundSource(Source, Protocol):
    """A source that `open_source` can find by itself."""

    def exists(self) -> bool:
        """Whether its path holds such data, from names of files and their first bytes.

        It is asked of every path that a user names, so it must be quick, and so certain that no
        data of another kind is taken for its own. Raises `SourceError` for a folder that cannot be
        listed.
        """
        ...


@dataclass(frozen=True)
class SourceFormat:
    """A kind of original data, by which `open_source` and `--format` know it.

    A package adds one by an entry point of the group `seqrecord.sources`: its name is the
    format's, and it refers to a `SourceFormat`.

    Args:
        name: what `--format` calls it: lower case letters, digits, `-` and `_`.
        layout: what it looks like, in a few words and names of files; errors show it.
        make: called with the path and `features=`, `keep_encoded=` and the `options` that were
            given, it makes the source. It does not look at the data yet.
        options: names of the arguments that only some formats take.
        takes_files: whether the path can be a single file.
        is_fallback: whether it is tried only where no other format fits.
        takes_urls: whether it reads files only through the functions that open URLs, too.
    """

    name: str
    layout: str
    make: Callable[..., FoundSource]
    options: tuple[str, ...] = ()
    takes_files: bool = False
    is_fallback: bool = False
    takes_urls: bool = False


def blocks_of(source: Source, info: EpisodeInfo) -> Iterator[Block]:
    """One episode's frames, many at a time where the source has a method `blocks` for it."""
    blocks: Callable[[EpisodeInfo], Iterator[Block]] | None = getattr(source, "blocks", None)
    return map(Block.of, source.frames(info)) if blocks is None else blocks(info)
