"""Page kinds: how the frames of a feature become pages, and pages become frames again.

A kind is one object. The codec of a feature selects it, see `page_kind`; a page whose reference bit
is set has packets or frames in an external file, and the kind `reference` resolves it first::

    raw        no codec, a fixed shape      `store.format.raw_pages`
    encoded    a blob per frame             `store.format.encoded_pages`
    video      groups of pictures           `video.page_kind`
    reference  the bit, whatever the codec  `in_place.page_kind`

`store.areas` has their entry points. Nothing in `store` or `loader` asks which kind a page has;
they ask the kind. Who calls it, and when:

- Opening and writing check tables with `can_be_length` and `max_chunk_frames`, and find out with
  `may_refer` whether a group's table has the reference bit.
- The writer gets a `PageCodec` for each feature. `encode_block` encodes frames as they come. They
  wait in a `column` if their group has several features, which cuts a page when its chunk is full;
  or the kind has a `group` of its own, which decides where chunks end.
- The reader decodes with a `PageCodec` too. Only `cut` and `decode_into` know the page's bytes.
- Plans ask for sizes in bytes: `slice_bytes`, `decoder_bytes`, `reference_copies`. Frames that
  must be decoded in order are loaded in runs (`decodes_in_order`), which begin at units of
  `decoding_unit` frames.
- Conversions ask what a feature keeps of its source: `keeps_encoding`, `is_lossy`, `may_refer`.
- Caches and residency ask whether decoding costs more than a copy: `in_slices`, `is_costly`.

A page's identity is its digest (`page_digest`), of its bytes and the frames that it has. Pages of
references have the same identity wherever their original is, see `ReferenceKind`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import CodecError, FrameError, SchemaError
from seqrecord.store.areas import CODEC_CHECKS, CODEC_KINDS, PAGE_KINDS, load_entry
from seqrecord.store.checksum import Buffer
from seqrecord.store.schema import FeatureSpec, Schema

MAX_CHUNK_FRAMES = 1 << 16

Memo: TypeAlias = "MutableMapping[str, Any]"
"""What a codec keeps of a page between calls, such as its parsed offsets or an open decoder."""


class Blob(NamedTuple):
    """One encoded frame and its shape."""

    data: bytes | memoryview
    shape: tuple[int, ...]


EncodedColumn: TypeAlias = "Sequence[Blob] | memoryview"
"""One feature in a block of frames: a blob per frame, or all frames' bytes if the feature is raw.
"""


class PageCodec(ABC):
    """Encodes and decodes the pages of one feature. Thread-safe, except with one memo.

    `config` is what the function in `CODEC_CHECKS` returns for the feature's codec. Raises
    `SchemaError` if it refuses the configuration, which comes from a file.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.spec = spec
        check = load_entry(CODEC_CHECKS[spec.codec[0]["id"]])
        try:
            self.config = check(spec.codec, spec.dtype, spec.stored.shape)
        except ValueError as error:
            raise SchemaError(
                "this codec is not allowed", feature=spec.name, got=str(error)
            ) from error

    @abstractmethod
    def encode_frame(self, frame: Any) -> Blob:
        """Encode one frame. Raises `FrameError` if it does not fit the feature."""

    def encode_block(self, frames: npt.NDArray[Any] | Sequence[Any]) -> EncodedColumn:
        """Encode the frames of a block. Errors have the number of the frame in the block."""
        return encode_each(self.encode_frame, frames)

    @abstractmethod
    def cut(self, page: memoryview, count: int, positions: range) -> Buffer:
        """Return the page of some consecutive frames of a page with `count` frames.

        Nothing is decoded. Raises `FormatError` for an invalid page.
        """

    @abstractmethod
    def decode_into(
        self,
        page: memoryview,
        count: int,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
        positions: Sequence[int] | range | None = None,
        memo: Memo | None = None,
    ) -> None:
        """Decode frames of a page with `count` frames directly into `out`.

        `positions` selects frames of the page, `None` all. `out[i]` is a C-contiguous array with
        the dtype and shape of frame `positions[i]`. Raises `FormatError` or `CodecError`, with the
        offset inside the page.
        """

    def shapes(self, page: memoryview, count: int) -> list[tuple[int, ...]]:  # noqa: ARG002
        """Return the shapes of the page's `count` frames, checked against the feature's."""
        return [tuple(n or 0 for n in self.spec.shape)] * count

    def shape_of(self, count: int, position: int, table: memoryview) -> tuple[int, ...]:  # noqa: ARG002
        """Return one frame's shape. `table` needs the beginning of the page, with its tables."""
        return tuple(n or 0 for n in self.spec.shape)

    def runs(self, page: memoryview, count: int) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """Return the first frame of each run in the page, and `count`: int64 [runs + 1].

        A frame is decoded after all frames before it in its run.
        """
        return np.arange(count + 1)

    def reference(self, page: memoryview, length: int, count: int) -> Any:
        """Parse a page of references to `length` bytes of `count` frames: a `Reference`.

        Raises `FormatError`.
        """
        raise NotImplementedError(f"pages of {self.spec.name} are no references")

    def resolve(self, reference: Any, data: memoryview) -> memoryview:
        """Return the page with the frames themselves, given the bytes that a reference needs.

        Raises `ChecksumError` or `FormatError`.
        """
        raise NotImplementedError(f"pages of {self.spec.name} are no references")

    def num_decoded(self, memo: Memo) -> int:  # noqa: ARG002
        """Return the frames that an open decoder has decoded, also for others; 0 without one."""
        return 0


class PageColumn(Protocol):
    """Encoded frames that wait for the next page, for one feature in a shared group."""

    def add(self, column: EncodedColumn, rows: range, expected: int) -> None:
        """Add these rows of a block; the page will probably have `expected` frames."""

    def take(self, count: int) -> tuple[Buffer, Sequence[Blob]]:
        """Take the page of the first `count` frames, and their blobs if their shapes differ.

        Valid until frames are added after another page was taken.
        """

    def clear(self) -> None:
        """Drop the waiting frames."""


class PageKind(ABC):
    """How pages are written, read and counted. Without state."""

    name: ClassVar[str]

    codec: ClassVar[type[PageCodec]]
    """Codec class; raises `SchemaError` for a feature with an invalid codec."""

    max_chunk_frames: ClassVar[int] = MAX_CHUNK_FRAMES
    """Readers refuse longer chunks; the writer cuts chunks before, whatever `chunk_frames` is."""

    in_slices: ClassVar[bool] = False
    """Whether pages are the frames' bytes, in slices of whole frames, each with a checksum.

    Such frames are read into rows without decoding, and without the rest of their page.
    """

    decodes_in_order: ClassVar[bool] = False
    """Whether a decoder is kept open, and frames are cheapest in ascending order."""

    shares_chunks: ClassVar[bool] = True
    """Whether features may share a group; false for a kind with a `group` of its own."""

    scales: ClassVar[bool] = False
    """Whether pages are decoded into frames of any height and width, see `resize=`."""

    reference_copies: ClassVar[int] = 1
    """Copies in memory of referenced bytes while a page is read."""

    @abstractmethod
    def can_be_length(
        self, spec: FeatureSpec, length: npt.NDArray[Any], count: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return whether pages of `count` frames can have these lengths in bytes: bool [chunks]."""

    def may_refer(self, spec: FeatureSpec) -> bool:  # noqa: ARG002
        """Whether pages may be references: frames or packets as they are in original files."""
        return False

    def slice_bytes(self, spec: FeatureSpec) -> int:
        """Bytes in a slice, if pages are `in_slices`."""
        raise NotImplementedError(f"pages of {spec.name} have no slices")

    def decoding_unit(self, spec: FeatureSpec) -> int:  # noqa: ARG002
        """Frames that are decoded together, counted from a page's first frame; 0: a whole page."""
        return 1

    def decoder_bytes(self, spec: FeatureSpec) -> int:
        """Bytes that an open decoder takes, if frames must be decoded in order."""
        raise NotImplementedError(f"pages of {spec.name} have no decoder")

    def keeps_encoding(self, spec: FeatureSpec) -> bool:  # noqa: ARG002
        """Whether frames may be stored in their source's encoding: image files, packets."""
        return False

    def is_lossy(self, spec: FeatureSpec) -> bool:  # noqa: ARG002
        """Whether encoding loses data."""
        return False

    def is_costly(self, spec: FeatureSpec) -> bool:  # noqa: ARG002
        """Whether decoding a frame costs several times as much as writing it."""
        return False

    def column(self, codec: PageCodec) -> PageColumn:
        """Return a column for a group that the feature shares with others."""
        raise NotImplementedError(f"features of {self.name} have groups of their own")

    def group(self, schema: Any, number: int) -> Any:  # noqa: ARG002
        """Return a `ChunkGroup` for a feature that shares chunks with none; `None` if it may."""
        return None


class ReferenceKind(ABC):
    """How pages are written and read whose frames or packets are in external files.

    The index counts the external bytes of such a page, which is the reference bit. Its sizes are
    the page's and these bytes. Its identity is that of the external file: path, size and
    modification time or e-tag, wherever the original is.
    """

    name: ClassVar[str]

    @abstractmethod
    def group(
        self,
        schema: Any,
        number: int,
        externals: Mapping[str, tuple[str, int]],
        *,
        checksums: bool,
    ) -> Any:
        """Return the `ChunkGroup` of a feature that may refer; `None` if its frames are copied.

        `externals` maps the name of an original file to the id of a list and the place in it. With
        `checksums`, referenced bytes are read for their CRC32C.
        """

    @abstractmethod
    def pages(self, *args: Any) -> Any:
        """Return an `ExternalPages`, which reads external bytes and makes pages of them."""


def page_kind(spec: FeatureSpec) -> PageKind:
    """Return the kind of a feature's pages, whether or not frames are resized after decoding.

    Raises `MissingPackageError` if it is of a part that this copy of the package lacks.
    """
    if spec.codec:
        name = CODEC_KINDS.get(spec.codec[0]["id"], "encoded")
    else:
        shape = spec.shape if spec.stored_shape is None else spec.stored_shape
        name = "encoded" if None in shape else "raw"
    kind: PageKind = _load_kind(name)
    return kind


def reference_kind() -> ReferenceKind:
    """Return the kind for pages with the reference bit.

    Raises `MissingPackageError` if this copy of the package lacks its part.
    """
    kind: ReferenceKind = _load_kind("reference")
    return kind


@cache
def _load_kind(name: str) -> Any:
    """Return the kind of this name in `store.areas`."""
    return load_entry(PAGE_KINDS[name])


def check_shared_groups(schema: Schema) -> None:
    """Raise `SchemaError` for several features in a group if a page kind must not share chunks.

    Kinds are loaded only for groups of several features: one may be of a missing part.
    """
    names: dict[int, list[str]] = {}
    for spec in schema.values():
        names.setdefault(spec.group, []).append(spec.name)
    for spec in schema.values():
        if len(names[spec.group]) > 1 and not (kind := page_kind(spec)).shares_chunks:
            raise SchemaError(
                f"{kind.name} shares its group with another feature",
                feature=spec.name,
                expected="a group of its own",
                got=", ".join(names[spec.group]),
            )


def page_codec(spec: FeatureSpec) -> Any:
    """Return the page codec for a feature."""
    return page_kind(spec).codec(spec.stored)


def encode_each(encode: Callable[[Any], Blob], frames: Iterable[Any]) -> list[Blob]:
    """Encode frames one by one. Errors have the number of the frame."""
    blobs: list[Blob] = []
    for frame in frames:
        try:
            blobs.append(encode(frame))
        except (FrameError, CodecError) as error:
            raise error.located(frame=len(blobs)) from error.__cause__
    return blobs
