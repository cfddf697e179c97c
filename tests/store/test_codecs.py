"""Presets and chains: lossless, with bounded memory, restricted to allowed codecs."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from seqrecord.errors import CodecError, MissingPackageError, SchemaError
from seqrecord.store.areas import CODEC_KINDS, NAMED_CODECS
from seqrecord.store.codecs.base import MAX_BUFFER_BYTES, numcodecs
from seqrecord.store.codecs.chain import CODEC_IDS, FrameCodec, image_chain, resolve
from seqrecord.store.codecs.delta import Delta, unbuffered
from seqrecord.store.codecs.images import FORMATS, IMAGE, probe
from seqrecord.store.codecs.integers import Bias, SubtractGreen
from seqrecord.store.codecs.presets import PRESETS
from tests.kit.datasets import encoded
from tests.kit.processes import run_code
from tests.store import fuzz_codecs

Array = npt.NDArray[Any]

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
COMPRESSORS = ("blosc", "zstd", "lz4")
TOGETHER = (*PRESETS[1:], *COMPRESSORS)  # decode several frames in few calls
DELTA = {"id": "seqrecord.delta", "axis": 0}
PNG = {"id": "seqrecord.image", "format": "png"}
JPEG = {"id": "seqrecord.image", "format": "jpeg"}


def codec_for(codec: Any, frame: Array) -> FrameCodec:
    chain = resolve(codec, frame.dtype, frame.shape, feature="x")
    return FrameCodec(chain, frame.dtype, frame.shape)


def decoded(codec: FrameCodec, data: Any, like: Array) -> Array:
    out = np.empty(like.shape, codec.dtype)
    codec.decode_into(data, out)
    return out


def round_trip(codec: FrameCodec, frame: Array) -> None:
    """Compares bits, including NaN payloads and negative zeros."""
    out = decoded(codec, codec.encode(frame), frame)
    assert out.tobytes() == np.ascontiguousarray(frame, codec.dtype).tobytes()


def refuse(codec: FrameCodec, blobs: Any, like: Array) -> None:
    for blob in blobs:
        with pytest.raises(CodecError):
            codec.decode_into(blob, np.empty(like.shape, codec.dtype))


def smooth(*shape: int, dtype: str = "u1") -> Array:
    steps = np.random.default_rng(0).integers(-3, 4, shape)
    return np.cumsum(steps, axis=min(1, len(shape) - 1)).astype(dtype)


@st.composite
def any_frames(draw: st.DrawFn) -> Array:
    """Arrays of any bit patterns: small arrays drawn, larger arrays in image-like shapes."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shapes = (
        hnp.array_shapes(min_dims=0, max_dims=4, max_side=6),
        st.tuples(st.integers(14, 40), st.integers(14, 40), st.integers(1, 5)),
        st.tuples(st.integers(14, 70), st.integers(14, 40)),
    )
    shape = draw(st.one_of(*shapes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    top = 2 if dtype.kind == "b" else 256
    raw = rng.integers(0, top, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


@given(frame=any_frames(), preset=st.sampled_from(PRESETS))
def test_presets_are_lossless(frame: Array, preset: str) -> None:
    round_trip(codec_for(preset, frame), frame)


@pytest.mark.parametrize("preset", PRESETS)
def test_special_floats_memory_layouts_and_variable_shapes(preset: str) -> None:
    for dtype in ("f2", "f4", "f8", "c8", "c16"):
        for channels in ((), (2,), (3,)):
            frame = np.zeros((32, 32, *channels), dtype)
            frame[0], frame[1], frame[2], frame[3] = np.nan, -0.0, np.inf, -np.inf
            frame.reshape(-1).view("u1")[: 64 * 7 : 7] = 0x5A
            frame[4] = np.frombuffer(b"\x01\x02\xf8\x7f" * 4, dtype)[0]  # a NaN with a payload
            round_trip(codec_for(preset, frame), frame)
    for dtype in ("u1", "<f4", "i2"):
        base = smooth(48, 64, 6, dtype=dtype)
        for frame in (
            base[::2, ::-1, :3],
            base.transpose(1, 0, 2)[..., 1:4],
            np.broadcast_to(base[0, 0, :3], (20, 30, 3)),
            np.asfortranarray(base[..., :3]),
            base[..., :3].astype(base.dtype.newbyteorder(">")),
        ):
            chain = resolve(preset, np.dtype(dtype), frame.shape, feature="x")
            round_trip(FrameCodec(chain, np.dtype(dtype), frame.shape), frame)
    codec = FrameCodec(resolve(preset, "u1", (None, None, 3), feature="x"), "u1", (None, None, 3))
    for height, width in ((1, 1), (480, 640), (3, 500)):
        round_trip(codec, smooth(height, width, 3))
    with pytest.raises(CodecError):
        codec.encode(np.zeros((3, 4, 4), "u1"))


def test_presets_by_kind_of_feature() -> None:
    shapes: list[tuple[str, str, tuple[int | None, ...], list[str]]] = [
        ("balanced", "u1", (480, 640, 3), ["delta", "blosc"]),
        ("balanced", "u1", (None, None, 3), ["delta", "blosc"]),
        ("small", "u1", (480, 640, 3), ["subtract_green", "delta", "zstd"]),
        ("balanced", "f4", (480, 640, 2), ["delta", "delta", "bias", "blosc"]),
        ("balanced", "f4", (480, 640), ["blosc"]),
        ("small", "f4", (480, 640), ["delta", "bias", "blosc"]),
        ("balanced", "u1", (480, 640), ["blosc"]),
        ("small", "u1", (480, 640), ["zstd"]),
        ("balanced", "i2", (16000,), ["blosc"]),
        ("balanced", "f8", (7,), []),
        ("fast", "f4", (480, 640), ["blosc"]),
        ("raw", "f4", (480, 640), []),
    ]
    for preset, dtype, shape, expected in shapes:
        chain = resolve(preset, dtype, shape, feature="x")
        json.dumps(chain)
        assert [config["id"].removeprefix("seqrecord.") for config in chain] == expected


@pytest.mark.parametrize("name", COMPRESSORS)
def test_every_compressor(name: str) -> None:
    """Alone and after a filter; blobs that are too long or too short are refused."""
    frame = smooth(50, 60, dtype="<u2")
    round_trip(codec_for([{"id": name}], frame), frame)
    round_trip(codec_for([DELTA, {"id": name}], frame), frame)
    round_trip(codec_for([DELTA, {"id": "seqrecord.bias"}], frame), frame)
    frame = smooth(3000)
    codec = codec_for([{"id": name}], frame)
    for size in (2999, 3001):
        blob = codec_for([{"id": name}], smooth(size)).encode(smooth(size))
        with pytest.raises(CodecError, match="3000"):
            codec.decode_into(blob, np.empty_like(frame))
    refuse(codec, [codec.encode(frame) + b"\0"], frame)


def test_every_codec_is_tested_and_fuzzed() -> None:
    page = (Path(__file__).parents[2] / "docs/codecs.md").read_text()
    table = page.partition("\n## Compressors\n")[2].partition("\n## ")[0]
    assert sorted(COMPRESSORS) == sorted(re.findall(r"^\| `(\w+)` \|", table, re.M))
    frames = fuzz_codecs.frames(np.random.default_rng(0))
    chains = [chain for frame in frames for chain in fuzz_codecs.chains(frame)]
    assert {config["id"] for chain in chains for config in chain} == {*CODEC_IDS} - {*CODEC_KINDS}


def test_bloscs_type_size_may_differ_from_the_element_size() -> None:
    for typesize in (1, 2, 4, 8):
        chain = [{"id": "blosc", "cname": "lz4", "shuffle": 2, "typesize": typesize}]
        for frame, stored in ((smooth(40, 60, 3), typesize), (smooth(41, 61, 3), 1)):
            assert codec_for(chain, frame).encode(frame)[3] == stored
            round_trip(codec_for(chain, frame), frame)


@pytest.mark.parametrize("shape", [(300, 400), (512, 512), (100, 7), (16, 16), (3, 400_001)])
@pytest.mark.parametrize("blocksize", [0, 1 << 15, 1 << 20])
def test_noise_is_stored_in_any_blosc_buffer(shape: tuple[int, ...], blocksize: int) -> None:
    """Values that grow slowly and whose lowest two bytes are noise."""
    noise = np.random.default_rng(0).integers(0, 1 << 16, shape)
    growing = np.arange(math.prod(shape)).reshape(shape) // 64 * 65536
    frame = (growing + noise).astype("<u4")
    config = {"id": "blosc", "cname": "lz4hc", "clevel": 5, "shuffle": 1, "blocksize": blocksize}
    codec = codec_for([config], frame)
    blob = codec.encode(frame)
    round_trip(codec, frame)
    assert numcodecs.get_codec(config).decode(blob) == frame.tobytes()
    plain = numcodecs.get_codec(config).encode(frame)
    assert len(plain) - 64 <= len(blob) <= 1.05 * len(plain) + 64
    if shape == (512, 512):  # whole blocks, with a noisy plane stored unchanged
        assert frame.view("u1").reshape(-1, 4)[:1024, 0].tobytes() in blob


def test_pure_noise_and_frames_larger_than_the_temporary_buffer() -> None:
    frame = np.random.default_rng(0).integers(0, 1 << 32, (300, 400)).astype("<u4")
    codec = codec_for("fast", frame)
    assert len(codec.encode(frame)) <= frame.nbytes + 16
    round_trip(codec, frame)
    frames = [smooth(*shape, 2, dtype="<f4") for shape in ((800, 700), (120, 160), (48, 64))]
    assert frames[0].nbytes > MAX_BUFFER_BYTES
    for frame in (*frames, *frames[::-1]):
        round_trip(codec_for("balanced", frame), frame)


# Several frames in few calls


def blobs_of(codec: FrameCodec, frames: Array) -> list[memoryview]:
    return [memoryview(codec.encode(frame)) for frame in frames]


SHAPES: list[tuple[tuple[int, ...], str]] = [
    *(((1600,), "i2"), ((84, 84, 3), "u1"), ((24, 32, 2), "f4"), ((32, 40), "f4"), ((301,), "c8")),
    *(((120, 200, 3), "u1"), ((120, 150), "f4")),  # large frames
]


@pytest.mark.parametrize("name", TOGETHER)
def test_frames_together(name: str, thorough: bool) -> None:
    """Frames that compress well, little or not at all, in every order; compares bits."""
    rng = np.random.default_rng(3)
    chosen = SHAPES if thorough else SHAPES[TOGETHER.index(name) % 3 :: 3]
    for shape, dtype in chosen:
        frames = smooth(24 if math.prod(shape) < 9000 else 8, *shape, dtype=dtype)
        kinds = rng.permutation(np.arange(len(frames)) % 4)
        frames[kinds == 1] = 0
        frames.view("u1")[kinds == 2] = rng.integers(0, 256, frames.view("u1")[kinds == 2].shape)
        codec = codec_for(name if name in PRESETS else [DELTA, {"id": name}], frames[0])
        for some in (frames, frames[kinds == 3], frames[:1], frames[:2], frames[::-1]):
            blobs, out = blobs_of(codec, some), np.empty_like(some, order="C")
            assert codec.decode_frames(blobs, out)
            assert out.tobytes() == some.tobytes()
            for bad in (blobs[0][:-1], blobs[0][:9]):
                assert not codec.decode_frames([*blobs[:-1], bad], out)


@pytest.mark.parametrize("name", TOGETHER)
def test_damage_to_any_of_several_blobs(name: str) -> None:
    frames = smooth(9, 2000, dtype="i2")
    codec = codec_for(name if name in PRESETS else [{"id": name}], frames[0])
    blobs, out = blobs_of(codec, frames), np.empty_like(frames)
    other = codec.encode(frames[0][::-1].copy())
    for bad in (b"", other[:-1], other + b"\0", b"\xff" * len(other), other[:17]):
        assert not codec.decode_frames([*blobs[:4], memoryview(bad), *blobs[5:]], out)
    assert codec.decode_frames(blobs, out)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8"])
def test_a_blob_that_claims_bytes_of_the_next_one(dtype: str) -> None:
    """Blosc gets several blobs as one buffer, which has enough bytes."""
    frames = smooth(9, 2000, dtype=dtype)
    frames.view("u1")[:, :900] = 0
    frames.view("u1")[:, -90:] = np.random.default_rng(0).integers(0, 256, (9, 90))
    codec = codec_for([{"id": "blosc", "cname": "lz4", "shuffle": 1}], frames[0])
    blobs, out = blobs_of(codec, frames), np.empty_like(frames)
    assert codec.decode_frames(blobs, out)
    blob = blobs[4].tobytes()
    cuts = [(blob[:12], len(blob) - cut, blob[16:-cut]) for cut in (1, 2, 4, 20, 60)]
    sizes = (-(1 << 31), -5, -1, 0, len(blob), 1 << 20, (1 << 31) - 1)  # of the first plane
    for before, size, after in (*cuts, *((blob[:20], size, blob[24:]) for size in sizes)):
        bad = before + struct.pack("<I", size & 0xFFFFFFFF) + after
        refuse(codec, [bad], out[4])
        assert not codec.decode_frames([*blobs[:4], memoryview(bad), *blobs[5:]], out)


def calls_of(action: Callable[[], object]) -> int:
    """Counts the Python and C functions that an action calls in this thread."""
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        action()
    finally:
        sys.setprofile(None)
    return events.count("call") + events.count("c_call")


def test_frames_together_take_few_calls() -> None:
    cases: list[tuple[str, tuple[int, ...], str, int, int]] = [
        ("balanced", (480, 640, 3), "u1", 16, 45),  # mostly in numcodecs: 20 for each frame
        ("balanced", (480, 640), "f4", 16, 45),  # twice as many one by one
        *((preset, (1600,), "i2", 100, 10) for preset in PRESETS[1:]),  # seven times as many
    ]
    for preset, shape, dtype, count, most in cases:
        frames = np.broadcast_to(smooth(1, *shape, dtype=dtype), (count, *shape))
        codec = codec_for(preset, frames[0])
        blobs, out = blobs_of(codec, frames[:1]) * count, np.empty_like(frames, order="C")
        calls = calls_of(partial(codec.decode_frames, blobs, out))
        assert np.array_equal(out, frames)
        assert calls < most * count


def test_frames_that_are_not_decoded_together() -> None:
    kept = smooth(3, 20, 30, 3)
    found = codec_for([PNG], kept[0])
    assert not found.decode_frames(blobs_of(found, kept), np.empty_like(kept))
    found = codec_for("fast", kept[0])
    with pytest.raises(CodecError, match="contiguous"):
        found.decode_frames(blobs_of(found, kept), np.empty((3, 20, 30, 6), "u1")[..., ::2])


# Hostile blobs and configurations


def test_bombs_allocate_no_more_than_the_frame() -> None:
    frame, huge = np.zeros(10_000, "u1"), np.zeros(50 << 20, "u1")
    out = np.empty_like(frame)
    blobs = {
        "zstd": codec_for([{"id": "zstd"}], huge).encode(huge),
        "blosc": codec_for([{"id": "blosc"}], huge).encode(huge),
        "lz4": struct.pack("<I", 0x7FFFFFFF) + b"\0" * 100,
    }
    assert blobs.keys() == {*COMPRESSORS}
    for name, blob in blobs.items():
        codec = codec_for([{"id": name}], frame)
        tracemalloc.start()
        with pytest.raises(CodecError):
            codec.decode_into(blob, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


def test_wrong_headers_of_zstd_and_blosc() -> None:
    # RFC 8878: no single segment, no content size; a raw last block of two bytes
    out = np.empty(2, "u1")
    codec = codec_for([{"id": "zstd"}], out)
    with pytest.raises(CodecError, match="does not declare"):
        codec.decode_into(bytes.fromhex("28b52ffd 00 58 110000 6162"), out)
    codec.decode_into(bytes.fromhex("28b52ffd 20 02 110000 6162"), out)
    assert out.tobytes() == b"ab"
    frame = smooth(5000)
    codec = codec_for([{"id": "blosc", "cname": "lz4", "clevel": 5}], frame)
    blob = codec.encode(frame)
    # Version, size of an element, bytes of the frame, of a block, and of the blob.
    for offset, size in ((0, 1), (3, 1), (4, 4), (8, 4), (12, 4)):
        for value in (0, 0xFFFFFFFF, 0x80000000, 5001):
            altered = blob[:offset] + struct.pack("<I", value)[:size] + blob[offset + size :]
            if altered != blob and not (offset == 3 and altered[3]):
                refuse(codec, [altered], frame)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
def test_damaged_blobs_never_crash(seed: int) -> None:
    code = "import sys, warnings; warnings.simplefilter('error')\n"
    code += "from tests.store.fuzz_codecs import main; main(*map(int, sys.argv[1:]))"
    assert "refused" in run_code(code, seed, 5000 if seed else 1000).stdout


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
    "seqrecord.delta": {"axis": [3, 10**9, "x"]},
    "seqrecord.bias": {"value": [1]},
    "seqrecord.image": {"format": ["gif"]},
    "delta": {"dtype": ["u1"]},
}
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
    [{"id": "zstd"}, {"id": "seqrecord.bias"}],
    [{"id": "seqrecord.bias"}] * 5,
    [PNG, {"id": "zstd"}],
    [{"id": "seqrecord.bias"}, PNG],
    [{**JPEG, "quality": 1000}],
]
NO_NAMES = {
    "jpg": "no codec is named 'jpg'",
    "": "no codec is named ''",
    "raw:level=1": "raw takes no parameter, not 'level=1'",
    "png:quality=90": "png takes no parameter, not 'quality=90'",
    "jpeg:quality": "jpeg takes quality, not 'quality'",
    "jpeg:quality=90,": "jpeg takes quality, not ''",
    "jpeg:quality=high": "quality is not a number: 'high'",
    "jpeg:quality=null": "quality is not a number: 'null'",
    "jpeg:quality=101": "does not take 'quality' of 101",
    "jpeg:quality=90.5": "does not take 'quality' of 90.5",
    "jpeg:quality=true": "does not take 'quality' of True",
    "jpeg:quality=[1]": "does not take 'quality' of",
}


def test_configurations_and_names_that_are_refused() -> None:
    for codec in HOSTILE:
        with pytest.raises(SchemaError) as caught:
            resolve(codec, np.dtype("u1"), (40, 60, 3), feature="image")
        assert caught.value.feature == "image", codec
        assert len(str(caught.value)) < 600, codec
        if not isinstance(codec, str):
            with pytest.raises(SchemaError):
                FrameCodec(codec, np.dtype("u1"), (40, 60, 3))
    for name, why in NO_NAMES.items():
        with pytest.raises(SchemaError, match=re.escape(why)) as caught:
            resolve(name, "u1", (40, 60, 3), feature="x")
        assert caught.value.feature == "x"
    for dtype, shape in (("f4", (40, 60)), ("u1", (40, 60, 2)), ("u2", (9,))):
        with pytest.raises(SchemaError, match="cannot store"):
            resolve([PNG], dtype, shape, feature="x")


def test_outputs_of_the_wrong_size() -> None:
    frame = smooth(40, 60, 3).astype("<u2")
    codec = codec_for("balanced", frame)
    blob, fixed = codec.encode(frame), np.empty_like(frame)
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
    frames = [np.roll(smooth(60, 80, 2, dtype="<f4"), k, axis=0) for k in range(4)]
    codec = codec_for(preset, frames[0])

    def repeat(frame: Array) -> None:
        for _ in range(20):
            round_trip(codec, frame)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(repeat, frames))


# Encoded images


def by_pillow(data: bytes) -> Array:
    return np.asarray(Image.open(io.BytesIO(data)))


def test_kept_images() -> None:
    rng = np.random.default_rng(0)
    for shape, dtype in (((40, 60), "u1"), ((4, 6, 3), "u1"), ((4, 6, 4), "u1"), ((4, 6), "<u2")):
        frame = rng.integers(0, 256, shape).astype(dtype)
        data = encoded(frame)
        header = probe(data)
        assert (header.format, header.dtype, header.shape) == ("png", frame.dtype, shape)
        codec = FrameCodec(image_chain(data), frame.dtype, shape)
        assert codec.encode(EncodedImage(data)) == data
        np.testing.assert_array_equal(decoded(codec, data, frame), frame)
        round_trip(codec, frame)
    frame = smooth(40, 60, 3)
    data = encoded(frame, kind="jpeg", quality=90)
    codec = FrameCodec(image_chain(data), "u1", (None, None, 3))
    kept = decoded(codec, codec.encode(EncodedImage(data)), frame)
    np.testing.assert_array_equal(kept, by_pillow(data))
    with pytest.raises(CodecError, match="quality"):
        codec.encode(frame)
    codec = FrameCodec([{**PNG, "format": "any"}], "u1", (None, None, 3))
    for kind in ("png", "jpeg"):
        data = encoded(frame, kind=kind)
        assert codec.encode(EncodedImage(data)) == data
        np.testing.assert_array_equal(decoded(codec, data, frame), by_pillow(data))
    round_trip(codec, frame)
    refuse(codec, (b"", b"GIF89a", b"\xff\xd8\xff"), frame)


@pytest.mark.filterwarnings("error")
def test_images_of_more_pixels_than_pillow_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    frame = np.full((40, 40, 3), 7, "u1")
    for name in ("png", "jpeg"):
        codec = codec_for(name, frame)
        round_trip(codec, decoded(codec, codec.encode(EncodedImage(codec.encode(frame))), frame))


def test_image_codecs_by_name() -> None:
    frame = smooth(40, 60, 3)
    round_trip(codec_for("png", frame), frame)
    assert resolve("png", frame.dtype, frame.shape, feature="x") == (PNG,)
    for name, quality in (("jpeg", 90), ("jpeg:quality=1", 1), ("jpeg:quality=100", 100)):
        config = {**JPEG, "quality": quality}
        assert resolve(name, frame.dtype, frame.shape, feature="x") == (config,)
        codec = codec_for(name, frame)
        out = decoded(codec, codec.encode(frame), frame)
        np.testing.assert_array_equal(out, by_pillow(encoded(frame, kind="jpeg", quality=quality)))
        assert not np.array_equal(out, frame)


def test_images_that_cannot_be_kept() -> None:
    frame = smooth(40, 60, 3)
    png, jpeg = encoded(frame), encoded(frame, kind="jpeg")
    deep = bytearray(png)
    deep[24] = 16  # 16-bit colour, which Pillow would cut to 8
    deep[29:33] = struct.pack(">I", zlib.crc32(deep[12:29]))
    for data in (b"", b"GIF89a", png[:20], encoded(frame, "P"), bytes(deep)):
        with pytest.raises(CodecError):
            image_chain(data)
    codec = codec_for([PNG], frame)
    others = (jpeg, encoded(smooth(41, 60, 3)), png[:20])
    for data in others:
        with pytest.raises(CodecError):
            codec.encode(EncodedImage(data))
    refuse(codec, (*others, png[:-60]), frame)
    with pytest.raises(CodecError, match="stores no encoded images"):
        codec_for("balanced", frame).encode(EncodedImage(png))


@pytest.mark.parametrize(
    ("dtype", "channels"), [("u1", ()), ("u1", (3,)), ("u1", (4,)), ("<u2", ()), ("<u2", (3,))]
)
def test_jpegxl(dtype: str, channels: tuple[int, ...]) -> None:
    """16-bit alpha is refused, as for all image codecs."""
    pytest.importorskip("imagecodecs")
    rng = np.random.default_rng(0)
    for size in ((40, 60), (1, 1), (1, 7), (40, 3), (3, 4), (40, 4)):
        frame = rng.integers(0, np.iinfo(dtype).max, (*size, *channels)).astype(dtype)
        frame[: len(frame) // 2] = 0  # pixels below transparent alpha are kept too
        codec = codec_for("jpegxl", frame)
        round_trip(codec, frame)
        data = codec.encode(frame)
        cut = (b"", data[:3], data[:-1], data[: len(data) // 2])
        refuse(codec, (*cut, b"\xff\x0a" + bytes(90)), frame)
        as_other = frame.astype("<u2" if dtype == "u1" else "u1")
        for other in (np.concatenate([frame, frame]), as_other):
            with pytest.raises((CodecError, SchemaError)):
                codec_for("jpegxl", other).decode_into(data, np.empty_like(other))


def test_the_error_names_missing_imagecodecs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imagecodecs")
    frame = np.zeros((4, 6, 3), "u1")
    codec = codec_for("jpegxl", frame)
    data = codec.encode(frame)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(MissingPackageError, match="extra `images`: pip install imagecodecs"):
        codec.decode_into(data, np.empty_like(frame))
    with pytest.raises(MissingPackageError, match="pip install imagecodecs"):
        codec.encode(frame)


def _npy(array: Any, **changes: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array, **changes), allow_pickle=True)
    return file.getvalue()


def test_arrays_that_are_kept_as_files() -> None:
    values, out = np.arange(6, dtype="<f4").reshape(2, 3), np.zeros((2, 3), "<f4")
    codec = FrameCodec(({"id": "seqrecord.image", "format": "npy"},), "<f4", (2, 3))
    good = _npy(values)
    for data in (good, _npy(values, dtype=">f4"), _npy(values, order="F"), codec.encode(values)):
        out[...] = 0
        codec.decode_into(codec.encode(EncodedImage(data)), out)
        assert np.array_equal(out, values)
    wrong = {
        "no npy": b"x" * 40,
        "cut header": good[:20],
        "cut": good[:-1],
        "more": good + b"x",
        "dtype": _npy(values, dtype="<f8"),
        "shape": _npy(values[:1]),
        "pickle": _npy([[object()] * 3] * 2, dtype=object),
        "version 3": good[:6] + b"\x03" + good[7:],
        "a literal that is none": good.replace(b"False", b"exec("),
        "absurd": good.replace(b"(2, 3)", b"(2,-3)"),
    }
    for name, data in wrong.items():
        with pytest.raises(CodecError) as info:
            codec.decode_into(data, out)
        assert info.value.got, name
    any_image = FrameCodec(({"id": "seqrecord.image", "format": "any"},), "|u1", (2, 3))
    with pytest.raises(CodecError):
        any_image.encode(EncodedImage(_npy(values, dtype="u1")))


# The closed list


ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/v1"
NORMATIVE = (ROOT / "docs/codecs.md").read_text().partition("\n## Chains\n")[2]


def golden_configs() -> list[dict[str, Any]]:
    """Configurations of all codecs in the manifests of golden datasets."""
    manifests = [json.loads(path.read_text()) for path in GOLDEN.glob("*/manifest.json")]
    return [
        config
        for manifest in manifests
        for feature in manifest["schema"]
        for config in feature["codec"]
    ]


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_the_codec_has_a_normative_text(codec: str) -> None:
    assert re.search(rf'`{re.escape(codec)}`|"id": "{re.escape(codec)}"', NORMATIVE)


@pytest.mark.parametrize("codec", CODEC_IDS)
def test_the_codec_is_in_a_golden_dataset(codec: str) -> None:
    """`test_golden` decodes all of them."""
    assert codec in {config["id"] for config in golden_configs()}


@pytest.mark.parametrize(
    ("codec", "key", "names"), [(IMAGE, "format", FORMATS), ("video", "codec", NAMED_CODECS)]
)
def test_formats_have_texts_and_golden_datasets(codec: str, key: str, names: Any) -> None:
    used = {config.get(key) for config in golden_configs() if config["id"] == codec}
    described = {*re.findall(r"`\"?([\w]+)\"?`|\"(\w+)\"", NORMATIVE)}
    assert {*names} - {name for pair in described for name in pair} == set()
    assert {*names} - used == set()


# Filters


UINTS = ("<u1", "<u2", "<u4", "<u8")


def u1(*rows: list[int]) -> npt.NDArray[np.uint8]:
    return np.array(rows, np.uint8)


def filter_decoded(codec: Any, frame: npt.NDArray[Any]) -> npt.NDArray[Any]:
    out = np.empty(frame.shape, frame.dtype)
    with unbuffered():
        codec.decode(frame[np.newaxis], out[np.newaxis])
    return out


def decoded_in_place(codec: Any, frame: npt.NDArray[Any]) -> npt.NDArray[Any]:
    frames = frame[np.newaxis]
    with unbuffered():
        codec.decode(frames, frames)
    return frame


@pytest.mark.parametrize(
    ("codec", "array", "encoded"),
    [
        (Delta(axis=1), u1([1, 3, 2], [250, 4, 4]), "01 02 ff fa 0a 00"),
        (Delta(axis=-1), u1([1, 3, 2], [250, 4, 4]), "01 02 ff fa 0a 00"),
        (Delta(axis=0), u1([1, 3, 2], [250, 4, 4]), "01 03 02 f9 01 02"),
        # 0x00010000 - 0x00000001 = 0x0000ffff: the borrow crosses from one element to the next
        (Delta(axis=0, width=4), np.array([[1, 0], [0, 1]], "<u2"), "0100 0000 ffff 0000"),
        (Delta(axis=0), np.array([[1, 0], [0, 1]], "<u2"), "0100 0000 ffff 0100"),
        (Delta(axis=0), np.array([1, 0], "<u8"), "0100000000000000 ffffffffffffffff"),
        (Delta(axis=None), u1([1, 3, 2], [250, 4, 4]), "01 02 ff f8 0a 00"),
        (Delta(axis=None, width=2), u1([1, 0, 2, 0], [4, 1, 0, 2]), "0100 0100 0201 fc00"),
        (Delta(axis=1, restart=2), u1([1, 3, 2], [250, 4, 4]), "01 02 02 fa 0a 04"),
        (Delta(axis=0, restart=2), u1([1], [3], [2], [7], [8]), "01 02 02 05 08"),
        (Delta(axis=None, restart=4), u1([1, 3, 2], [250, 4, 4]), "01 02 ff f8 04 00"),
        (Bias(), u1([0, 255]), "00 ff"),
        (Bias(), np.array([0, 0xFFFF, 0xFF80], "<u2"), "8000 7f00 0000"),
        (Bias(), np.array([1, 0xFFFFFFFF], "<u4"), "81808000 7f808000"),
        (Bias(), np.array([0], "<u8"), "80808080 80808000"),
        (SubtractGreen(), u1([10, 20, 5], [255, 0, 7]), "f6 14 f1 ff 00 07"),
        (SubtractGreen(), np.array([[1, 2, 3]], "<u2"), "ffff 0200 0100"),
    ],
)
def test_bytes(codec: Any, array: npt.NDArray[Any], encoded: str) -> None:
    assert codec.encode(array).tobytes() == bytes.fromhex(encoded)
    assert filter_decoded(codec, codec.encode(array)).tobytes() == array.tobytes()


@given(
    array=hnp.arrays(st.sampled_from(UINTS), hnp.array_shapes(min_dims=1, max_dims=4, max_side=40)),
    axis=st.integers(-4, 3),
    restart=st.integers(2, 20),
)
def test_any_shape_is_inverted(array: npt.NDArray[Any], axis: int, restart: int) -> None:
    axis %= array.ndim
    deltas = (Delta(axis), Delta(axis, restart=restart), Delta(None), Delta(None, restart=restart))
    for codec in (*deltas, Bias()):
        encoded = codec.encode(array)
        assert encoded.shape == array.shape
        assert encoded.dtype == array.dtype
        np.testing.assert_array_equal(filter_decoded(codec, encoded), array)
        np.testing.assert_array_equal(decoded_in_place(codec, encoded), array)


# Slabs long enough for sums in blocks, with different remainders.
@pytest.mark.parametrize("length", [*range(15, 40, 3), 97, 719])
@pytest.mark.parametrize("dtype", UINTS)
def test_filters_of_long_slabs_are_inverted(length: int, dtype: str) -> None:
    rng = np.random.default_rng(length)
    array = rng.integers(0, 255, (2, length, 300)).astype(dtype)
    codecs = (Delta(1), Delta(-2, width=8), Delta(1, restart=16), Delta(1, None, 7))
    for codec in codecs:
        if codec.width is None or (300 * array.dtype.itemsize) % codec.width == 0:
            encoded = codec.encode(array)
            np.testing.assert_array_equal(filter_decoded(codec, encoded), array)
            np.testing.assert_array_equal(decoded_in_place(codec, encoded), array)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (3, 0), (2, 0, 4)])
def test_sums_of_empty_and_tiny_arrays(shape: tuple[int, ...]) -> None:
    array = np.full(shape, 7, "<u4")
    axes = [None, *range(len(shape))]
    for codec in [Delta(axis, restart=restart) for axis in axes for restart in (None, 2)]:
        np.testing.assert_array_equal(filter_decoded(codec, codec.encode(array)), array)


def test_sums_into_another_array_keep_their_source() -> None:
    array = np.random.default_rng(0).integers(0, 99, (40, 64, 8)).astype("<u4")
    for codec in (Delta(None), Delta(0), Delta(0, restart=16), Delta(-2), Delta(1, restart=3)):
        encoded = codec.encode(array)
        before = encoded.copy()
        np.testing.assert_array_equal(filter_decoded(codec, encoded), array)
        np.testing.assert_array_equal(encoded, before)
    size = np.getbufsize()  # NumPy's buffer size, which sums change temporarily
    filter_decoded(Delta(0), np.ones((40, 300), "<u1"))
    assert np.getbufsize() == size


@pytest.mark.parametrize(
    ("codec", "shape"),
    [
        (Delta(None, width=8), (480, 640, 2)),
        (Delta(-3, width=8, restart=16), (480, 640, 2)),
        (Delta(-3), (480, 640, 2)),
        (Bias(), (480, 640, 2)),
    ],
)
def test_the_gil_is_released_while_a_frame_is_decoded(codec: Any, shape: tuple[int, ...]) -> None:
    source = np.zeros((1, *shape), "<u4")
    out = source if isinstance(codec, Bias) else np.zeros_like(source)
    ran, start = threading.Event(), threading.Lock()
    start.acquire()

    def other() -> None:
        with start:
            ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # no switch unless the decoder releases the GIL
    try:
        start.release()
        calls = 0
        while not ran.is_set() and calls < 2000:
            with unbuffered():
                codec.decode(source, out)
            calls += 1
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("dtype", UINTS)
def test_pixel_filters_are_inverted_over_several_bands(dtype: str) -> None:
    shape = (2 * MAX_BUFFER_BYTES // np.dtype(dtype).itemsize // 33 + 5, 11, 3)
    pixels = np.random.default_rng(0).integers(0, 255, shape, np.uint8).astype(dtype)
    for codec in (SubtractGreen(), Bias()):
        encoded = codec.encode(pixels)
        np.testing.assert_array_equal(decoded_in_place(codec, encoded), pixels)


def test_input_of_any_layout_is_not_changed() -> None:
    array = np.random.default_rng(0).integers(0, 255, (20, 20, 3)).astype("<u2")
    for view in (array[::2, ::-1], array.transpose(1, 0, 2), np.broadcast_to(array[0], (4, 20, 3))):
        before = view.copy()
        for codec in (Delta(0), Delta(1), Bias(), SubtractGreen()):
            encoded = codec.encode(view)
            np.testing.assert_array_equal(view, before)
            np.testing.assert_array_equal(filter_decoded(codec, encoded), before)


def test_unsupported_shapes_are_refused() -> None:
    several: list[tuple[Any, tuple[int, ...], int]] = [
        (Delta(axis=2), (3, 4), 1),
        (Delta(axis=-3), (3, 4), 1),
        (Delta(axis=0), (), 4),
        (Delta(axis=0, width=2), (3, 4), 4),
        (Delta(axis=0, width=8), (4, 3), 2),
        (Delta(axis=None, width=8), (4, 3), 2),
        (Delta(axis=None, width=8), (), 2),
        (SubtractGreen(), (3, 4), 1),
        (SubtractGreen(), (), 1),
    ]
    for codec, shape, itemsize in several:
        with pytest.raises(ValueError, match=r"axis|bytes"):
            codec.check(shape, itemsize)
