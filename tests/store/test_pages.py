"""Pages: literal bytes, round trips of random frames, and all kinds of malformed pages."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import EncodedImage, FeatureSpec, FormatError
from seqrecord.errors import CodecError, FrameError
from seqrecord.store.format.encoded_pages import table_bytes
from seqrecord.store.format.page_kinds import Blob, page_codec
from seqrecord.store.format.pages import aligned, page_offsets

_ZSTD = ({"id": "zstd", "level": 1},)
_CHAINS: list[tuple[dict[str, Any], ...]] = [
    (),
    _ZSTD,
    ({"id": "seqrecord.bias"}, {"id": "lz4", "acceleration": 1}),
    ({"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1, "blocksize": 0},),
]
_DTYPES = "|b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split()  # noqa: SIM905


def _codec(
    dtype: str, shape: tuple[int | None, ...], codec: tuple[dict[str, Any], ...] = ()
) -> Any:
    return page_codec(FeatureSpec("f", np.dtype(dtype), shape, codec))


def _page(codec: Any, frames: list[npt.NDArray[Any]]) -> memoryview:
    return memoryview(codec.join([codec.encode_frame(frame) for frame in frames]))


@st.composite
def _frames(draw: st.DrawFn) -> tuple[FeatureSpec, list[npt.NDArray[Any]]]:
    """A feature, and matching frames of random bits."""
    dtype = np.dtype(draw(st.sampled_from(_DTYPES)))
    shape = tuple(draw(st.lists(st.none() | st.integers(1, 4), max_size=3)))
    spec = FeatureSpec("f", dtype, shape, draw(st.sampled_from(_CHAINS)))
    frames = []
    for _ in range(draw(st.integers(1, 5))):
        sizes = tuple(draw(st.integers(0, 5)) if n is None else n for n in shape)
        size = int(np.prod(sizes, dtype=int)) * dtype.itemsize
        raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
        frames.append((raw & 1 if dtype == np.bool_ else raw).view(dtype).reshape(sizes))
    return spec, frames


@given(_frames(), st.data())
def test_round_trip(case: tuple[FeatureSpec, list[npt.NDArray[Any]]], data: st.DataObject) -> None:
    spec, frames = case
    codec, count = page_codec(spec), len(frames)
    page = _page(codec, frames)
    shapes = codec.shapes(page, count)
    assert shapes == [frame.shape for frame in frames]
    wanted = data.draw(st.lists(st.integers(0, count - 1), max_size=6))
    out = [np.empty(shapes[i], spec.dtype) for i in wanted]
    codec.decode_into(page, count, out, wanted)
    assert [frame.tobytes() for frame in out] == [frames[i].tobytes() for i in wanted]
    table = page[: table_bytes(spec, count)]
    for i, frame in enumerate(frames):
        alone = np.empty(codec.shape_of(count, i, table), spec.dtype)
        codec.decode_into(memoryview(codec.cut(page, count, range(i, i + 1))), 1, [alone])
        assert alone.tobytes() == frame.tobytes()
    if spec.is_fixed:
        whole = np.empty((count, *frames[0].shape), spec.dtype)
        codec.decode_into(page, count, whole)
        assert whole.tobytes() == b"".join(frame.tobytes() for frame in frames)
        picked = np.empty((len(wanted), *frames[0].shape), spec.dtype)
        codec.decode_into(page, count, picked, wanted)
        assert picked.tobytes() == b"".join(frame.tobytes() for frame in out)


def test_literal_bytes() -> None:
    raw = _page(_codec("<u2", (2,)), [np.array([1, 2], "<u2"), np.array([3, 0xFFFE], ">u2")])
    assert bytes(raw) == b"\x01\0\x02\0\x03\0\xfe\xff"
    codec = _codec("|u1", (3,), _ZSTD)
    frames = [np.array([1, 2, 3], "u1"), np.array([0, 0, 0], "u1")]
    first, second = (bytes(codec.encode_frame(frame).data) for frame in frames)
    offsets = struct.pack("<3I", 12, 12 + len(first), 12 + len(first) + len(second))
    assert bytes(_page(codec, frames)) == offsets + first + second
    frames = [np.array([[1, 2]], "u1"), np.array([[3, 4], [5, 6]], "u1")]
    shapes = struct.pack("<3I4I", 28, 30, 34, 1, 2, 2, 2)
    assert bytes(_page(_codec("|u1", (None, 2)), frames)) == shapes + bytes(range(1, 7))
    for chain in _CHAINS:
        codec = _codec("<f4", (None, 4), chain)
        page = _page(codec, [np.zeros((0, 4), "<f4")])
        assert bytes(page) == struct.pack("<4I", 16, 16, 0, 4)
        codec.decode_into(page, 1, [np.empty((0, 4), "<f4")])


def test_empty_page() -> None:
    for codec in (_codec("|u1", (2,)), _codec("|u1", (2,), _ZSTD), _codec("|u1", (None,))):
        assert codec.join([]) == b""
        codec.decode_into(memoryview(b""), 0, [])
        assert codec.shapes(memoryview(b""), 0) == []
        with pytest.raises(FormatError):
            codec.decode_into(memoryview(b"x" * 64), 0, [])


def test_page_offsets() -> None:
    lengths = np.array([[1, 64, 65, 0], [0, 0, 0, 2**32 - 1]], np.uint32)
    assert page_offsets(lengths).tolist() == [[0, 64, 128, 256, 256], [0, 0, 0, 0, 2**32]]
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]


def test_mismatched_frames_are_refused() -> None:
    for dtype, shape, frame in (
        ("<u2", (2,), np.zeros(2, "<u4")),
        ("<u2", (2,), np.zeros(2, "<i2")),
        ("<u2", (2,), np.zeros(3, "<u2")),
        ("<u2", (2,), np.zeros((2, 1), "<u2")),
        ("<u2", (None,), np.empty(2**29 + 1, "<u2")),
        ("<u2", (None, None), np.zeros((0, 2**29 + 1), "<u2")),
        ("<u2", (2,), [1, 2]),
        ("|b1", (2,), np.array([0, 2], "u1").view("?")),
        ("|u1", (2,), EncodedImage(b"GIF89a")),
    ):
        with pytest.raises(FrameError) as caught:
            _codec(dtype, shape).encode_frame(frame)
        assert caught.value.feature == "f"

    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(FrameError, match="too large"):
        _codec("|u1", (None,)).join([Blob(Huge(), (1,)), Blob(Huge(), (1,))])


def test_impossible_shapes_and_lengths() -> None:
    codec = _codec("|u1", (None, 2))
    for shape in ((1, 3), (2**31, 2), (2**32 - 1, 2), (2**29 + 1, 2)):
        page = memoryview(struct.pack("<4I", 16, 18, *shape) + b"ab")
        with pytest.raises(FormatError, match="impossible shape") as caught:
            codec.shapes(page, 1)
        assert caught.value.offset == 8
    page = memoryview(struct.pack("<4I", 16, 16, 0, 2**30 + 1))  # an empty frame
    with pytest.raises(FormatError, match="impossible shape"):
        _codec("|u1", (None, None)).shapes(page, 1)
    for blob in (b"abc", b"a"):  # decodes to too many, too few bytes
        page = memoryview(struct.pack("<4I", 16, 16 + len(blob), 1, 2) + blob)
        with pytest.raises(CodecError) as found:
            codec.decode_into(page, 1, [np.empty((1, 2), "u1")])
        assert found.value.offset == 16
    with pytest.raises(FormatError, match="wrong length"):
        _codec("|u1", (2,)).decode_into(memoryview(b"abc"), 1, np.empty((1, 2), "u1"))


@pytest.mark.parametrize("at", [0, 3, 19])
def test_the_error_has_the_offset_of_the_damaged_frame(at: int) -> None:
    chain = ({"id": "blosc", "cname": "zstd", "clevel": 2, "shuffle": 1, "blocksize": 1 << 20},)
    codec = _codec("<i2", (500,), chain)
    frames = list(np.cumsum(np.random.default_rng(0).integers(-9, 9, (20, 500), "<i2"), axis=1))
    page = bytearray(_page(codec, [frame.astype("<i2") for frame in frames]))
    offsets = codec.offsets(memoryview(page), 20)
    page[offsets[at] + 23] ^= 0xFF  # a block's size
    out = np.empty((20, 500), "<i2")
    with pytest.raises(CodecError) as caught:
        codec.decode_into(memoryview(page), 20, out)
    assert caught.value.offset == offsets[at]
    page[offsets[at] + 23] ^= 0xFF
    codec.decode_into(memoryview(page), 20, out)
    assert np.array_equal(out, frames)


def test_invalid_bools_are_refused() -> None:
    for shape in ((2,), (None,)):
        codec = _codec("|b1", shape)
        page = bytearray(_page(codec, [np.array([True, False])]))
        out = [np.empty(2, "?")]
        codec.decode_into(memoryview(page), 1, out)
        page[-1] = 2
        with pytest.raises(CodecError, match="neither 0 nor 1"):
            codec.decode_into(memoryview(page), 1, out)
