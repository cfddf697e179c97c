"""Presets and chains: lossless, bounded, and closed to what files may ask for."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from seqrecord import EncodedImage
from seqrecord.codecs import PRESETS, FrameCodec, image_chain, probe, resolve
from seqrecord.codecs.base import MAX_BUFFER_BYTES, numcodecs
from seqrecord.codecs.presets import fast_config
from seqrecord.errors import CodecError, MissingPackageError, SchemaError

Array = npt.NDArray[Any]

ROOT = Path(__file__).parents[1]
DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
COMPRESSORS = ("blosc", "zstd", "lz4", "zlib", "bz2", "lzma")
PNG = {"id": "seqrecord.image", "format": "png"}
JPEG = {"id": "seqrecord.image", "format": "jpeg"}


def codec_for(codec: Any, frame: Array) -> FrameCodec:
    return FrameCodec(
        resolve(codec, frame.dtype, frame.shape, feature="x"), frame.dtype, frame.shape
    )


def round_trip(codec: FrameCodec, frame: Array) -> None:
    """Bit for bit, so that NaN payloads and negative zeros count."""
    out = np.empty(frame.shape, codec.dtype)
    codec.decode_into(codec.encode(frame), out)
    assert out.tobytes() == np.ascontiguousarray(frame, codec.dtype).tobytes()


def smooth(*shape: int, dtype: str = "u1") -> Array:
    steps = np.random.default_rng(0).integers(-3, 4, shape)
    return np.cumsum(steps, axis=min(1, len(shape) - 1)).astype(dtype)


@st.composite
def any_frames(draw: st.DrawFn) -> Array:
    """Arrays of any bit patterns: small ones drawn, and larger ones in image-like shapes."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(
        st.one_of(
            hnp.array_shapes(min_dims=0, max_dims=4, max_side=6),
            st.tuples(st.integers(14, 40), st.integers(14, 40), st.integers(1, 5)),
            st.tuples(st.integers(14, 70), st.integers(14, 40)),
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    top = 2 if dtype.kind == "b" else 256
    raw = rng.integers(0, top, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


@given(frame=any_frames(), preset=st.sampled_from(PRESETS))
def test_presets_are_lossless(frame: Array, preset: str) -> None:
    round_trip(codec_for(preset, frame), frame)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("channels", [(), (2,), (3,)])
def test_special_floats(preset: str, dtype: str, channels: tuple[int, ...]) -> None:
    frame = np.zeros((32, 32, *channels), dtype)
    frame[0], frame[1], frame[2], frame[3] = np.nan, -0.0, np.inf, -np.inf
    frame.reshape(-1).view("u1")[: 64 * 7 : 7] = 0x5A
    payload = np.frombuffer(b"\x01\x02\xf8\x7f" * 4, dtype)[0]  # a NaN that carries something
    frame[4] = payload
    round_trip(codec_for(preset, frame), frame)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dtype", ["u1", "<f4", "i2"])
def test_any_memory_layout_and_byte_order(preset: str, dtype: str) -> None:
    base = smooth(48, 64, 6, dtype=dtype)
    for frame in (
        base[::2, ::-1, :3],
        base.transpose(1, 0, 2)[..., 1:4],
        np.broadcast_to(base[0, 0, :3], (20, 30, 3)),
        np.asfortranarray(base[..., :3]),
        base[..., :3].astype(base.dtype.newbyteorder(">")),
    ):
        little = np.dtype(dtype)
        chain = resolve(preset, little, frame.shape, feature="x")
        round_trip(FrameCodec(chain, little, frame.shape), frame)


@pytest.mark.parametrize("preset", PRESETS)
def test_variable_dimensions(preset: str) -> None:
    shape = (None, None, 3)
    codec = FrameCodec(resolve(preset, "u1", shape, feature="x"), "u1", shape)
    for height, width in ((1, 1), (480, 640), (3, 500)):
        round_trip(codec, smooth(height, width, 3))
    with pytest.raises(CodecError):
        codec.encode(np.zeros((3, 4, 4), "u1"))


def test_presets_by_kind_of_feature() -> None:
    def ids(preset: str, dtype: str, *shape: int | None) -> list[str]:
        chain = resolve(preset, dtype, shape, feature="x")
        json.dumps(chain)
        return [config["id"].removeprefix("seqrecord.") for config in chain]

    assert ids("balanced", "u1", 480, 640, 3) == ["delta", "blosc"]
    assert ids("balanced", "u1", None, None, 3) == ["delta", "blosc"]
    assert ids("small", "u1", 480, 640, 3) == ["subtract_green", "delta", "zstd"]
    assert ids("balanced", "f4", 480, 640, 2) == ["delta", "delta", "bias", "blosc"]
    assert ids("balanced", "f4", 480, 640) == ["blosc"]
    assert ids("small", "f4", 480, 640) == ["delta", "bias", "blosc"]
    assert ids("balanced", "u1", 480, 640) == ["blosc"]
    assert ids("small", "u1", 480, 640) == ["zstd"]
    assert ids("balanced", "i2", 16000) == ["blosc"]
    assert ids("balanced", "f8", 7) == []
    assert ids("fast", "f4", 480, 640) == ["blosc"]
    assert ids("raw", "f4", 480, 640) == []


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor_alone_and_after_a_filter(name: str) -> None:
    frame = smooth(50, 60, dtype="<u2")
    round_trip(codec_for([{"id": name}], frame), frame)
    delta = {"id": "seqrecord.delta", "axis": 0}
    round_trip(codec_for([delta, {"id": name}], frame), frame)
    round_trip(codec_for([delta, {"id": "seqrecord.zigzag"}], frame), frame)


@pytest.mark.parametrize("typesize", [1, 2, 4, 8])
def test_bloscs_type_size_may_be_another_than_the_elements(typesize: int) -> None:
    frame = smooth(40, 60, 3)
    chain = [{"id": "blosc", "cname": "lz4", "shuffle": 2, "typesize": typesize}]
    blob = codec_for(chain, frame).encode(frame)
    assert blob[3] == typesize
    round_trip(codec_for(chain, frame), frame)
    odd = smooth(41, 61, 3)
    assert codec_for(chain, odd).encode(odd)[3] == 1
    round_trip(codec_for(chain, odd), odd)


def noisy(*shape: int, seed: int = 0) -> Array:
    """Values that grow slowly and whose lowest two bytes are noise."""
    noise = np.random.default_rng(seed).integers(0, 1 << 16, shape)
    return (np.arange(math.prod(shape)).reshape(shape) // 64 * 65536 + noise).astype("<u4")


@pytest.mark.parametrize("shape", [(300, 400), (512, 512), (100, 7), (16, 16), (3, 400_001)])
@pytest.mark.parametrize("blocksize", [0, 1 << 15, 1 << 20])
def test_noise_is_stored_in_any_blosc_buffer(shape: tuple[int, ...], blocksize: int) -> None:
    frame = noisy(*shape)
    config = {"id": "blosc", "cname": "lz4hc", "clevel": 5, "shuffle": 1, "blocksize": blocksize}
    codec = codec_for([config], frame)
    blob = codec.encode(frame)
    round_trip(codec, frame)
    assert numcodecs.get_codec(config).decode(blob) == frame.tobytes()
    plain = numcodecs.get_codec(config).encode(frame)
    assert len(plain) - 64 <= len(blob) <= 1.05 * len(plain) + 64
    if shape == (512, 512):  # whole blocks, in which a noisy plane lies as it is
        assert frame.view("u1").reshape(-1, 4)[:1024, 0].tobytes() in blob


def test_nothing_but_noise_and_frames_larger_than_the_temporary() -> None:
    frame = np.random.default_rng(0).integers(0, 1 << 32, (300, 400)).astype("<u4")
    codec = codec_for("fast", frame)
    assert len(codec.encode(frame)) <= frame.nbytes + 16
    round_trip(codec, frame)
    frames = [smooth(*shape, 2, dtype="<f4") for shape in ((800, 700), (120, 160), (48, 64))]
    assert frames[0].nbytes > MAX_BUFFER_BYTES
    for frame in (*frames, *frames[::-1]):
        round_trip(codec_for("balanced", frame), frame)


def blobs_of(codec: FrameCodec, frames: Array) -> list[memoryview]:
    return [memoryview(codec.encode(frame)) for frame in frames]


@pytest.mark.parametrize("name", [*PRESETS[1:], *COMPRESSORS])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1600,), "i2"), ((84, 84, 3), "u1"), ((24, 32, 2), "f4"), ((32, 40), "f4"), ((301,), "c8")],
)
def test_small_frames_together(name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Frames that compress well, hardly, and not at all, in every order; bit for bit."""
    rng = np.random.default_rng(3)
    frames = smooth(24, *shape, dtype=dtype)
    kinds = rng.integers(0, 4, 24)
    frames[kinds == 1] = 0
    frames.view("u1")[kinds == 2] = rng.integers(0, 256, frames.view("u1")[kinds == 2].shape)
    chain = name if name in PRESETS else [{"id": "seqrecord.delta", "axis": 0}, {"id": name}]
    codec = codec_for(chain, frames[0])
    for some in (frames, frames[kinds == 3], frames[:1], frames[:2], frames[::-1]):
        out = np.empty_like(some, order="C")
        assert codec.decode_frames(blobs_of(codec, some), out)
        assert out.tobytes() == some.tobytes()


@pytest.mark.parametrize("name", [*PRESETS[1:], *COMPRESSORS])
@pytest.mark.parametrize(("shape", "dtype"), [((120, 200, 3), "u1"), ((120, 150), "f4")])
def test_large_frames_together(name: str, shape: tuple[int, ...], dtype: str) -> None:
    frames = smooth(7, *shape, dtype=dtype)
    frames[2:4] = 0
    chain = name if name in PRESETS else [{"id": "seqrecord.delta", "axis": 0}, {"id": name}]
    codec = codec_for(chain, frames[0])
    for some in (frames, frames[:1], frames[::-1]):
        blobs, out = blobs_of(codec, some), np.empty_like(some, order="C")
        assert codec.decode_frames(blobs, out)
        assert out.tobytes() == some.tobytes()
        for bad in (blobs[0][:-1], blobs[0][:9]):
            assert not codec.decode_frames([*blobs[:-1], bad], out)


def calls_of(action: Callable[[], object]) -> int:
    """The number of functions, of Python and of C, that an action calls in this thread."""
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        action()
    finally:
        sys.setprofile(None)
    return events.count("call") + events.count("c_call")


@pytest.mark.parametrize(
    ("preset", "shape", "dtype", "count", "most"),
    [
        ("balanced", (480, 640, 3), "u1", 16, 45),  # most are those of numcodecs: 20 for each frame
        ("balanced", (480, 640), "f4", 16, 45),  # one by one it is twice as many
        *((preset, (1600,), "i2", 100, 10) for preset in PRESETS[1:]),  # … seven times as many
    ],
)
def test_frames_together_take_few_calls(
    preset: str, shape: tuple[int, ...], dtype: str, count: int, most: int
) -> None:
    frames = np.broadcast_to(smooth(1, *shape, dtype=dtype), (count, *shape))
    codec = codec_for(preset, frames[0])
    blobs, out = blobs_of(codec, frames[:1]) * count, np.empty_like(frames, order="C")
    calls = calls_of(lambda: codec.decode_frames(blobs, out))
    assert np.array_equal(out, frames)
    assert calls < most * count


@pytest.mark.parametrize("name", [*PRESETS[1:], *COMPRESSORS])
def test_one_of_several_blobs_is_damaged(name: str) -> None:
    frames = smooth(9, 2000, dtype="i2")
    codec = codec_for(name if name in PRESETS else [{"id": name}], frames[0])
    blobs = blobs_of(codec, frames)
    out = np.empty_like(frames)
    other = codec.encode(frames[0][::-1].copy())
    for bad in (b"", other[:-1], other + b"\0", b"\xff" * len(other), other[:17]):
        assert not codec.decode_frames([*blobs[:4], memoryview(bad), *blobs[5:]], out)
    assert codec.decode_frames(blobs, out)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
def test_a_blob_that_claims_bytes_of_the_next_one(dtype: str) -> None:
    """Blosc is given several as one buffer, in which those bytes are there."""
    frames = smooth(9, 2000, dtype=dtype)
    frames.view("u1")[:, :900] = 0
    frames.view("u1")[:, -90:] = np.random.default_rng(0).integers(0, 256, (9, 90))
    codec = codec_for([{"id": "blosc", "cname": "lz4", "shuffle": 1}], frames[0])
    blobs, out = blobs_of(codec, frames), np.empty_like(frames)
    assert codec.decode_frames(blobs, out)
    blob = blobs[4].tobytes()
    for cut in (1, 2, 4, 20, 60):
        bad = blob[:12] + struct.pack("<I", len(blob) - cut) + blob[16:-cut]
        with pytest.raises(CodecError):
            codec.decode_into(bad, out[4])
        assert not codec.decode_frames([*blobs[:4], memoryview(bad), *blobs[5:]], out)
    for size in (-(1 << 31), -5, -1, 0, len(blob), 1 << 20, (1 << 31) - 1):  # of the first plane
        bad = blob[:20] + struct.pack("<i", size) + blob[24:]
        with pytest.raises(CodecError):
            codec.decode_into(bad, out[4])
        assert not codec.decode_frames([*blobs[:4], memoryview(bad), *blobs[5:]], out)


def test_frames_that_are_not_decoded_together() -> None:
    kept = smooth(3, 20, 30, 3)
    found = codec_for([PNG], kept[0])
    assert not found.decode_frames(blobs_of(found, kept), np.empty_like(kept))
    found = codec_for("fast", kept[0])
    with pytest.raises(CodecError, match="contiguous"):
        found.decode_frames(blobs_of(found, kept), np.empty((3, 20, 30, 6), "u1")[..., ::2])


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_smaller_or_larger_content_is_refused(name: str) -> None:
    frame = smooth(3000)
    codec = codec_for([{"id": name}], frame)
    for size in (2999, 3001):
        other = smooth(size)
        blob = codec_for([{"id": name}], other).encode(other)
        with pytest.raises(CodecError, match="3000"):
            codec.decode_into(blob, np.empty_like(frame))
    with pytest.raises(CodecError):
        codec.decode_into(codec.encode(frame) + b"\0", np.empty_like(frame))


def test_bombs_allocate_no_more_than_the_frame() -> None:
    frame = np.zeros(10_000, "u1")
    out = np.empty_like(frame)
    huge = np.zeros(200 << 20, "u1")
    blobs = {
        "zlib": zlib.compress(huge.data, 1),
        "zstd": codec_for([{"id": "zstd"}], huge).encode(huge),
        "blosc": codec_for([{"id": "blosc"}], huge).encode(huge),
        "lz4": struct.pack("<I", 0x7FFFFFFF) + b"\0" * 100,
    }
    del huge
    for name, blob in blobs.items():
        codec = codec_for([{"id": name}], frame)
        tracemalloc.start()
        with pytest.raises(CodecError):
            codec.decode_into(blob, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


def test_zstd_must_declare_its_size() -> None:
    # RFC 8878: no single segment, no content size; a raw last block of two bytes
    undeclared = bytes.fromhex("28b52ffd 00 58 110000 6162")
    codec = codec_for([{"id": "zstd"}], np.zeros(2, "u1"))
    with pytest.raises(CodecError, match="does not declare"):
        codec.decode_into(undeclared, np.empty(2, "u1"))
    out = np.empty(2, "u1")
    codec.decode_into(bytes.fromhex("28b52ffd 20 02 110000 6162"), out)
    assert out.tobytes() == b"ab"


@pytest.mark.parametrize("field", ["version", "typesize", "nbytes", "blocksize", "cbytes"])
def test_blosc_headers_that_lie(field: str) -> None:
    frame = smooth(5000)
    codec = codec_for([{"id": "blosc", "cname": "lz4", "clevel": 5}], frame)
    blob = bytearray(codec.encode(frame))
    offset, size = {
        "version": (0, 1),
        "typesize": (3, 1),
        "nbytes": (4, 4),
        "blocksize": (8, 4),
        "cbytes": (12, 4),
    }[field]
    for value in (0, 0xFFFFFFFF, 0x80000000, 5001):
        lying = bytearray(blob)
        lying[offset : offset + size] = struct.pack("<I", value)[:size]
        if lying != blob and not (field == "typesize" and lying[3]):
            with pytest.raises(CodecError):
                codec.decode_into(bytes(lying), np.empty_like(frame))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
def test_damaged_blobs_never_crash(seed: int) -> None:
    count = "5000" if seed else "2000"
    command = [sys.executable, "-W", "error", "-m", "tests.fuzz_codecs", str(seed), count]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "refused" in done.stdout


WRONG_PARAMETERS: dict[str, dict[Any, list[Any]]] = {
    "zstd": {
        "level": [10**9, "1", 1.0, True, [1], {}, None, float("nan"), np.int64(1)],
        "checksum": [1],
        "evil": [1],
        1: [1],
    },
    "blosc": {
        "clevel": [10**9, -1],
        "cname": ["snappy", b"lz4"],
        "shuffle": [3],
        "blocksize": [1 << 40],
        "typesize": [0, 3, 255],
    },
    "lz4": {"acceleration": [0]},
    "lzma": {"filters": [[{"id": 33, "dict_size": 1 << 32}]]},
    "seqrecord.delta": {"axis": [3, 10**9, "x"]},
    "seqrecord.bias": {"value": [1]},
    "seqrecord.image": {"format": ["gif"]},
    "delta": {"dtype": ["u1"]},
}
DELTA = {"id": "seqrecord.delta", "axis": 0}
HOSTILE: list[Any] = [
    *(
        [{"id": codec, name: value}]
        for codec, parameters in WRONG_PARAMETERS.items()
        for name, values in parameters.items()
        for value in values
    ),
    # 40 x 60 x 3 bytes: 3 is not a word
    *([{**DELTA, "restart": value}] for value in (0, 1, 10**9, None)),
    *([{**DELTA, "width": value}] for value in (8, 3)),
    *([{"id": value}] for value in (None, "pickle", "json2", "msgpack2", "vlen-bytes")),
    *([{"id": value}] for value in ("seqrecord.delta", "seqrecord.image")),
    *("zip", "", ["zstd"], {"id": "zstd"}, [{}], None, 7),
    [{"id": "zstd"}, {"id": "zstd"}],
    [{"id": "zstd"}, {"id": "seqrecord.zigzag"}],
    [{"id": "seqrecord.zigzag"}] * 5,
    [PNG, {"id": "zstd"}],
    [{"id": "seqrecord.zigzag"}, PNG],
    [{**JPEG, "quality": 1000}],
]


@pytest.mark.parametrize("codec", HOSTILE, ids=lambda codec: repr(codec)[:60])
def test_hostile_configurations(codec: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        resolve(codec, np.dtype("u1"), (40, 60, 3), feature="image")
    assert caught.value.feature == "image"
    assert len(str(caught.value)) < 600
    if not isinstance(codec, str):
        with pytest.raises(SchemaError):
            FrameCodec(codec, np.dtype("u1"), (40, 60, 3))


def test_outputs_that_do_not_fit() -> None:
    frame = smooth(40, 60, 3).astype("<u2")
    codec = codec_for("balanced", frame)
    blob = codec.encode(frame)
    fixed = np.empty_like(frame)
    fixed.flags.writeable = False
    for out in (
        fixed,
        np.empty((60, 40, 3), "<u2").transpose(1, 0, 2),
        *(np.empty((40, 60, 3), dtype) for dtype in (">u2", "<i2")),
        *(np.empty(shape, "<u2") for shape in ((40, 60), (40, 61, 3))),
    ):
        with pytest.raises(CodecError):
            codec.decode_into(blob, out)


@pytest.mark.parametrize("preset", ["fast", "balanced"])
def test_one_codec_in_many_threads(preset: str) -> None:
    frames = [np.roll(smooth(120, 160, 2, dtype="<f4"), k, axis=0) for k in range(4)]
    codec = codec_for(preset, frames[0])

    def changed(frame: Array) -> int:
        out = np.empty_like(frame)
        count = 0
        for _ in range(50):
            codec.decode_into(codec.encode(frame), out)
            count += out.tobytes() != frame.tobytes()
        return count

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(changed, frames)) == [0, 0, 0, 0]


def encoded(frame: Array, name: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, name, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((40, 60), "u1"), ((40, 60, 3), "u1"), ((40, 60, 4), "u1"), ((40, 60), "<u2")],
)
def test_kept_png(shape: tuple[int, ...], dtype: str) -> None:
    frame = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    data = encoded(frame, "png")
    header = probe(data)
    assert (header.format, header.dtype, header.shape) == ("png", frame.dtype, shape)
    codec = FrameCodec(image_chain(data), frame.dtype, shape)
    assert codec.encode(EncodedImage(data)) == data
    out = np.empty_like(frame)
    codec.decode_into(data, out)
    np.testing.assert_array_equal(out, frame)
    round_trip(codec, frame)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("codec", ["png", "jpeg"])
def test_images_of_more_pixels_than_pillow_opens(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    frame = np.full((40, 40, 3), 7, "u1")
    chain = codec_for(codec, frame)
    out = np.empty_like(frame)
    chain.decode_into(chain.encode(EncodedImage(chain.encode(frame))), out)
    assert (out == frame).all()


def test_kept_images_of_any_format() -> None:
    frame = smooth(40, 60, 3)
    codec = FrameCodec([{**PNG, "format": "any"}], "u1", (None, None, 3))
    out = np.empty_like(frame)
    for kind in ("png", "jpeg"):
        data = encoded(frame, kind)
        assert codec.encode(EncodedImage(data)) == data
        codec.decode_into(data, out)
        np.testing.assert_array_equal(out, np.asarray(Image.open(io.BytesIO(data))))
    codec.decode_into(codec.encode(frame), out)
    np.testing.assert_array_equal(out, frame)
    for data in (b"", b"GIF89a", b"\xff\xd8\xff"):
        with pytest.raises(CodecError):
            codec.decode_into(data, out)


def test_kept_jpeg() -> None:
    frame = smooth(40, 60, 3)
    data = encoded(frame, "jpeg", quality=90)
    codec = FrameCodec(image_chain(data), "u1", (None, None, 3))
    out = np.empty_like(frame)
    codec.decode_into(codec.encode(EncodedImage(data)), out)
    np.testing.assert_array_equal(out, np.asarray(Image.open(io.BytesIO(data))))
    with pytest.raises(CodecError, match="quality"):
        codec.encode(frame)
    lossy = codec_for([{**JPEG, "quality": 95}], frame)
    lossy.decode_into(lossy.encode(frame), out)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("png", PNG),
        ("jpeg", {**JPEG, "quality": 90}),
        ("jpeg:quality=1", {**JPEG, "quality": 1}),
        ("jpeg:quality=100", {**JPEG, "quality": 100}),
    ],
)
def test_image_codecs_by_name(name: str, config: dict[str, Any]) -> None:
    frame = smooth(40, 60, 3)
    assert resolve(name, frame.dtype, frame.shape, feature="x") == (config,)
    out = np.empty_like(frame)
    codec = codec_for(name, frame)
    codec.decode_into(codec.encode(frame), out)
    options = {"quality": config["quality"]} if "quality" in config else {}
    with Image.open(io.BytesIO(encoded(frame, config["format"], **options))) as image:
        np.testing.assert_array_equal(out, np.asarray(image))
    assert np.array_equal(out, frame) == (name == "png")


@pytest.mark.parametrize("name", ["raw", "raw_big_endian"])
@pytest.mark.parametrize("dtype", ["|b1", "|i1", "<u2", "<f2", "<i8", "<c16"])
def test_numbers_and_nothing_else(dtype: str, name: str) -> None:
    rng = np.random.default_rng(0)
    for shape in ((), (5,), (3, 4, 2)):
        frame = np.asarray(rng.random(shape) * 2).astype(dtype)
        codec = codec_for(({"id": "seqrecord.image", "format": name},), frame)
        round_trip(codec, frame)
        other = frame.astype(frame.dtype.newbyteorder(">" if name != "raw" else "<"))
        data = codec.encode(frame)
        assert data == other.tobytes()
        for bad in (b"", data[:-1], data + b"\0", data * 2):
            with pytest.raises(CodecError):
                codec.decode_into(bad, np.empty_like(frame))
        with pytest.raises(CodecError):
            codec.encode(EncodedImage(data))
    with pytest.raises(SchemaError):
        FrameCodec(({"id": "seqrecord.image", "format": name},), dtype, (None, 3))


@pytest.mark.parametrize("channels", [(), (3,), (4,)])
@pytest.mark.parametrize("dtype", ["u1", "<u2"])
def test_jpegxl(dtype: str, channels: tuple[int, ...]) -> None:
    if dtype == "<u2" and channels == (4,):
        return  # is refused, as 16-bit alpha is everywhere
    pytest.importorskip("imagecodecs")
    rng = np.random.default_rng(0)
    for size in ((40, 60), (1, 1), (1, 7), (40, 3), (3, 4), (40, 4)):
        frame = rng.integers(0, np.iinfo(dtype).max, (*size, *channels)).astype(dtype)
        frame[: len(frame) // 2] = 0  # where nothing is seen through alpha, pixels are kept too
        codec = codec_for("jpegxl", frame)
        round_trip(codec, frame)
        chain = resolve("jpegxl", frame.dtype, frame.shape, feature="x")
        round_trip(FrameCodec(chain, frame.dtype, frame.shape, fast=True), frame)
        data = codec.encode(frame)
        for bad in (b"", data[:3], data[:-1], data[: len(data) // 2], b"\xff\x0a" + bytes(90)):
            with pytest.raises(CodecError):
                codec.decode_into(bad, np.empty_like(frame))
        as_other = frame.astype("<u2" if dtype == "u1" else "u1")
        for other in (np.concatenate([frame, frame]), as_other):
            with pytest.raises((CodecError, SchemaError)):
                codec_for("jpegxl", other).decode_into(data, np.empty_like(other))


def test_imagecodecs_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imagecodecs")
    frame = np.zeros((4, 6, 3), "u1")
    codec = codec_for("jpegxl", frame)
    data = codec.encode(frame)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingPackageError, match="extra `images`: pip install imagecodecs"):
        codec.decode_into(data, np.empty_like(frame))
    with pytest.raises(MissingPackageError, match="pip install imagecodecs"):
        codec.encode(frame)


def test_names_that_are_no_codec() -> None:
    for name, why in {
        "jpg": "no codec is named 'jpg'",
        "": "no codec is named ''",
        "raw:level=1": "raw takes no parameter, not 'level=1'",
        "png:quality=90": "png takes no parameter, not 'quality=90'",
        "jpeg:quality": "jpeg takes quality, not 'quality'",
        "jpeg:quality=90,": "jpeg takes quality, not ''",
        "jpeg:quality=high": "quality is not a number: 'high'",
        "jpeg:quality=101": "does not take 'quality' of 101",
        "jpeg:quality=90.5": "does not take 'quality' of 90.5",
        "jpeg:quality=true": "does not take 'quality' of True",
        "jpeg:quality=[1]": "does not take 'quality' of",
    }.items():
        with pytest.raises(SchemaError, match=re.escape(why)) as caught:
            resolve(name, "u1", (40, 60, 3), feature="x")
        assert caught.value.feature == "x"
    for dtype, shape in (("f4", (40, 60)), ("u1", (40, 60, 2)), ("u2", (9,))):
        with pytest.raises(SchemaError, match="cannot store"):
            resolve([PNG], dtype, shape, feature="x")


def test_images_that_cannot_be_kept() -> None:
    frame = smooth(40, 60, 3)
    png = encoded(frame, "png")
    palette = io.BytesIO()
    Image.fromarray(frame).convert("P").save(palette, "png")
    deep = bytearray(png)
    deep[24] = 16  # 16-bit colour, which Pillow would cut to 8
    deep[29:33] = struct.pack(">I", zlib.crc32(deep[12:29]))
    for data in (b"", b"GIF89a", png[:20], palette.getvalue(), bytes(deep)):
        with pytest.raises(CodecError):
            image_chain(data)
    codec = codec_for([PNG], frame)
    for data in (encoded(frame, "jpeg"), encoded(smooth(41, 60, 3), "png"), png[:20]):
        with pytest.raises(CodecError):
            codec.encode(EncodedImage(data))
    for data in (encoded(frame, "jpeg"), encoded(smooth(41, 60, 3), "png"), png[:-60], png[:20]):
        with pytest.raises(CodecError):
            codec.decode_into(data, np.empty_like(frame))
    with pytest.raises(CodecError, match="stores no encoded images"):
        codec_for("balanced", frame).encode(EncodedImage(png))


CHAINS = ["fast", "balanced", "small", "png", [{"id": "zlib"}], [{"id": "zstd", "level": -5}]]


@pytest.mark.parametrize("codec", [*CHAINS, [{"id": "bz2"}], [{"id": "blosc", "clevel": 0}]])
@pytest.mark.parametrize(
    ("dtype", "shape"), [("|u1", (32, 40, 3)), ("<f4", (32, 40)), ("<u2", (32, 40)), ("<f4", (6,))]
)
def test_what_is_encoded_quickly_decodes_to_the_same(
    codec: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    if codec == "png" and (dtype == "<f4"):
        pytest.skip("no image of floats")
    chain = resolve(codec, dtype, shape, feature="x")
    frame = (np.random.default_rng(0).random(shape) * 50).astype(dtype)
    usual, quick = FrameCodec(chain, dtype, shape), FrameCodec(chain, dtype, shape, fast=True)
    for encoder, decoder in ((quick, usual), (usual, quick)):
        out = np.empty_like(frame)
        decoder.decode_into(encoder.encode(frame), out)
        np.testing.assert_array_equal(out, frame)


def test_the_slow_one_of_two_codecs_of_one_format_is_not_taken_quickly() -> None:
    config = {"id": "blosc", "cname": "lz4hc", "clevel": 5, "shuffle": 2}
    assert fast_config(config) == {**config, "cname": "lz4", "clevel": 9}
    assert fast_config({"id": "zstd", "level": 19}) == {"id": "zstd", "level": 1}
    assert fast_config({"id": "lz4", "acceleration": 4}) == {"id": "lz4", "acceleration": 4}
