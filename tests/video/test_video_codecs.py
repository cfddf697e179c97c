"""Groups of pictures: encoding, decoding, invalid packets."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord.errors import CodecError
from seqrecord.sources import Gop, describe_video
from seqrecord.video.config import VIDEO_CODECS, VideoConfig, named_video
from seqrecord.video.decoding import GopFrames, decode_gop
from seqrecord.video.encoding import encode_gop
from seqrecord.video.gops import MAX_GOP_FRAMES, MAX_GOP_PACKETS
from seqrecord.video.packages import colours, packet_of
from seqrecord.video.packets import Start, packet_format
from tests.kit.datasets import columns, write_dataset
from tests.kit.processes import run_code
from tests.kit.video_data import HEIGHT, WIDTH, moving
from tests.kit.video_file_data import decoded as decoded_file
from tests.kit.video_file_data import pictures, write_video
from tests.video.gops import config_of, gops_of

FRAMES = moving(20)
NAMES = sorted(VIDEO_CODECS)
KEYED = [name for name in NAMES if name != "ffv1"]  # every FFV1 packet is a keyframe


def decoded(name: str, gop: Gop) -> npt.NDArray[Any]:
    return decode_gop(config_of(name), HEIGHT, WIDTH, gop)


class Watched(list):  # type: ignore[type-arg]
    """Frames that record the scheduling of all threads while they are encoded."""

    def __init__(self, frames: Any) -> None:
        super().__init__(frames)
        self.seen = {os.sched_getscheduler(0)}

    def __iter__(self) -> Iterator[Any]:
        for frame in super().__iter__():
            for path in Path("/proc/self/task").iterdir():
                with suppress(ProcessLookupError):  # the thread has ended
                    self.seen.add(os.sched_getscheduler(int(path.name)))
            yield frame


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name: str) -> None:
    """As root, SVT-AV1 tries to make threads real-time, which starves other processes."""
    before = os.sched_getscheduler(0)
    gop = encode_gop(config_of(name), frames := Watched(FRAMES))
    assert {os.sched_getscheduler(0), *frames.seen} == {before}
    assert gop.num_frames == 20
    found = decoded(name, gop)
    if name == "ffv1":
        assert np.array_equal(found, FRAMES)
    difference = np.abs(found.astype(int) - FRAMES).mean(axis=(1, 2, 3))
    assert difference.max() < 30
    # … and each is nearer to its own frame than to the next.
    following = np.abs(found[1:].astype(int) - FRAMES[:-1]).mean(axis=(1, 2, 3))
    assert (difference[1:] < following).all()
    if name != "hevc":  # equal frames give equal bytes
        encode_gop(config_of(name), moving(5, seed=1))
        assert encode_gop(config_of(name), FRAMES) == gop
    # Hidden frames are skipped.
    cut = Gop(gop.packets, tuple(max(-1, number - 5) for number in gop.order))
    assert np.array_equal(decoded(name, cut), found[5:])


@pytest.mark.parametrize("name", KEYED)
def test_frames_equal_those_of_pyav(name: str) -> None:
    """One stream of two GOPs in a container, decoded by PyAV alone and GOP by GOP."""
    gops = gops_of(name, moving(24), 12)
    reference = _decoded_in_container(name, gops)
    assert np.array_equal(np.concatenate([decoded(name, gop) for gop in gops]), reference)
    # The second GOP alone, after another stream in the same decoder.
    decoded(name, gops_of(name, moving(3, seed=5), 3)[0])
    assert np.array_equal(decoded(name, gops[1]), reference[12:])


def _decoded_in_container(name: str, gops: list[Gop]) -> np.ndarray:
    """Writes packets to a Matroska file and decodes it with PyAV."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        encoder = {"av1": "libsvtav1", "vp9": "libvpx-vp9", "h264": "libx264", "hevc": "libx265"}
        stream = container.add_stream(encoder[name], rate=30)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        first = 0
        for gop in gops:
            for place, (data, number) in enumerate(zip(gop.packets, gop.order, strict=True)):
                packet = av.Packet(data)
                packet.pts, packet.dts = 33 * (first + number + 8), 33 * (first + place)
                packet.time_base, packet.stream = Fraction(1, 1000), stream
                packet.is_keyframe = place == 0
                container.mux(packet)
            first += gop.num_frames
    file.seek(0)
    with av.open(file) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def test_frames_are_decoded_one_by_one_and_decoders_are_reused() -> None:
    (gop,) = gops_of("h264", FRAMES, 20)
    whole = decoded("h264", gop)
    first, second = (
        GopFrames(config_of("h264"), HEIGHT, WIDTH, gop.packets, gop.order) for _ in range(2)
    )
    out = np.empty((2, HEIGHT, WIDTH, 3), np.uint8)
    first.skip(7)
    for number in range(7, 20):  # two decoders are independent
        first.read_into(out[0])
        assert np.array_equal(out[0], whole[number])
        if number < 12:
            second.read_into(out[1])
            assert np.array_equal(out[1], whole[number - 7])
    assert first.position == 20
    with pytest.raises(CodecError, match="beyond the last frame"):
        first.skip(1)


def test_describe() -> None:
    (gop,) = gops_of("h264:pixel_format=yuv444p", FRAMES[:3], 3)
    shape, config = describe_video("h264", gop, matrix=1, color_range="full")
    assert shape == (HEIGHT, WIDTH, 3)
    expected = VideoConfig("h264", "yuv444p", matrix=1, range="full")
    assert config == expected.to_json()
    with pytest.raises(CodecError, match="cannot be stored encoded"):
        describe_video("h264", Gop((b"junk",), (0,)))


def test_container_colours_apply_if_the_stream_has_none() -> None:
    """`red` and `blue` are their shares of the luma by matrix, from H.273."""
    context = av.CodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    context.time_base, context.options = Fraction(1, 30), {"qp": "0"}
    y, cb, cr = 100, 90, 170
    planes = [np.full(HEIGHT * WIDTH // n, value) for n, value in ((1, y), (4, cb), (4, cr))]
    picture = np.concatenate(planes).astype(np.uint8).reshape(-1, WIDTH)
    frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
    gop = Gop(tuple(map(bytes, [*context.encode(frame), *context.encode(None)])), (0,))
    matrices = [(None, 0.299, 0.114), (6, 0.299, 0.114), (1, 0.2126, 0.0722), (9, 0.2627, 0.0593)]
    for range_ in (None, "full"):
        pixels = "yuvj420p" if range_ else "yuv420p"  # FFmpeg's name
        luma, chroma = (y, 255.0) if range_ else ((y - 16) * 255 / 219, 224.0)
        for matrix, red, blue in matrices:
            got = decode_gop(VideoConfig("h264", pixels, matrix, range_), HEIGHT, WIDTH, gop)
            r = luma + 2 * (1 - red) * (cr - 128) * 255 / chroma
            b = luma + 2 * (1 - blue) * (cb - 128) * 255 / chroma
            g = (luma - red * r - blue * b) / (1 - red - blue)
            assert np.abs(got - np.array([r, g, b])).max() < 3


def test_a_reused_decoder_forgets_colours() -> None:
    """Streams of one configuration: one declares BT.709, the other nothing."""
    gops = []
    for matrix in (None, 1):
        context = av.CodecContext.create("libx264", "w")
        context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        context.time_base = Fraction(1, 30)
        if matrix is not None:
            context.colorspace = context.color_primaries = context.color_trc = matrix
        frame = av.VideoFrame.from_ndarray(FRAMES[0], format="rgb24").reformat(format="yuv420p")
        gops.append(Gop(tuple(map(bytes, [*context.encode(frame), *context.encode(None)])), (0,)))
    alone = [decode_gop(VideoConfig("h264", "yuv420p"), HEIGHT, WIDTH, gop) for gop in gops]
    assert np.abs(alone[0].astype(int) - alone[1]).max() > 9
    for number in (0, 1, 0, 0, 1):
        found = decode_gop(VideoConfig("h264", "yuv420p"), HEIGHT, WIDTH, gops[number])
        assert np.array_equal(found, alone[number])


@pytest.mark.parametrize("pixels", ["gbrp", "bgr0", "rgb24", "gray", "pal8", "ya8"])
def test_frames_without_chroma_need_no_matrix(pixels: str) -> None:
    frame = av.VideoFrame(16, 16, pixels)
    for matrix in (3, 8, 14):  # reserved, YCgCo, ICtCp
        frame.colorspace = matrix
        assert colours(frame) == {}
    frame = av.VideoFrame(16, 16, "yuv444p")
    frame.colorspace = 8
    with pytest.raises(ValueError, match="matrix 8"):
        colours(frame)


@pytest.mark.parametrize("name", KEYED)
def test_packets_that_are_not_a_gop(name: str) -> None:
    (gop,) = gops_of(name, FRAMES[:8], 8)
    packets, order = gop.packets, gop.order
    swapped = [{5: 6, 6: 5}.get(number, number) for number in order]
    for broken in (
        Gop(packets, tuple(swapped)),
        Gop(packets[1:], tuple(range(7))),
        Gop((*packets, b"\0" * 40), (*order, 8)),
    ):
        with pytest.raises(CodecError, match="cannot decode video"):
            decoded(name, broken)


@pytest.mark.parametrize("name", KEYED)
def test_a_stream_of_other_frames_is_refused(name: str) -> None:
    """FFV1 is left out: its packets contain no frame size."""
    (gop,) = gops_of(name, moving(2, size=(512, 512)), 2)
    small, other = config_of(name, (48, 48)), replace(config_of(name), pixel_format="yuv422p")
    for config, size in ((small, 48), (other, 512)):
        with pytest.raises(CodecError, match="cannot decode video"):
            decode_gop(config, size, size, gop)


def test_a_frame_that_is_too_large_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """A keyframe of 4096 x 4096 in a feature of 64 x 64: decoding takes 24 MB."""
    (gop,) = gops_of("h264:quality=51", np.zeros((1, 4096, 4096, 3), np.uint8), 1)
    (tmp_path / "packet").write_bytes(gop.packets[0])
    code = """
import sys
import numpy as np
from seqrecord.video.decoding import decode_gop
from seqrecord.video.gops import Gop
from seqrecord.errors import CodecError
from tests.video.gops import config_of, gops_of
def taken():
    return int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0])
config = config_of("h264", (64, 64))
decode_gop(config, 64, 64, gops_of("h264", np.zeros((1, 64, 64, 3), np.uint8), 1)[0])
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
before = taken()
try:
    decode_gop(config, 64, 64, Gop((open(sys.argv[1], "rb").read(),), (0,)))
except CodecError:
    most = open("/proc/self/status").read().split("VmHWM:")[1].split()[0]
    print(int(most) - before)
"""
    done = run_code(code, tmp_path / "packet")
    assert int(done.stdout) < 8192, done.stderr  # KiB


def test_narrow_frames_of_hevc_are_refused() -> None:
    """The encoder corrupts memory."""
    with pytest.raises(CodecError) as caught:
        encode_gop(config_of("hevc", (64, 62)), np.zeros((2, 64, 62, 3), np.uint8))
    assert (caught.value.expected, caught.value.got) == ("64 pixels or more", "62 pixels")


def test_names() -> None:
    dtype = np.dtype(np.uint8)
    assert named_video("av1", dtype, (480, 640, 3)) == (
        {"id": "video", "codec": "av1", "pixel_format": "yuv420p", "quality": 30, "gop": 32},
    )
    assert named_video("h264:gop=4,quality=10,pixel_format=yuv444p", dtype, (63, 65, 3)) == (
        {"id": "video", "codec": "h264", "pixel_format": "yuv444p", "quality": 10, "gop": 4},
    )
    assert config_of("av1", (1080, 1920)).gop == 8
    assert config_of("ffv1").gop == 1
    assert named_video("png", dtype, (64, 64, 3)) is None


COLOUR, GREY = ("uint8", (64, 64, 3)), ("uint16", (48, 64))
REFUSED: list[tuple[str, str, tuple[int | None, ...], str]] = [
    *(("av1", "uint8", shape, "video") for shape in ((64, 64), (64, 64, 4), (None, 64, 3))),
    ("av1", "uint8", (20000, 2, 3), "video"),
    ("av1", "uint8", (63, 64, 3), "even"),
    ("av1", "uint16", (64, 64, 3), "uint16"),
    *(("av1:quality=0", *COLOUR, "av1"), ("av1:quality=99", *COLOUR, "av1")),
    *(("av1:pixel_format=yuv444p", *COLOUR, "av1"), ("av1:crf=3", *COLOUR, "av1")),
    *((f"h264:gop{value}", *COLOUR, "h264") for value in ("=0", "=257", "=1.5", "=null", "")),
    *(("ffv1:quality=1", *COLOUR, "ffv1"), ("hevc:quality=true", *COLOUR, "hevc")),
    # Lossy for depth
    ("ffv1", "float32", (47, 61), "float32 .*balanced.*in mm.*uint16"),
    ("av1", "float32", (47, 61, 3), "balanced"),
    ("ffv1", "uint16", (47, 61, 3), "gray16le stores uint16"),
    ("ffv1", "uint16", (None, 61), "gray16le stores uint16"),
    ("ffv1", "uint8", (47, 61), "uint8 .H, W, 3., or uint16"),
    ("ffv1", "int16", (47, 61), "not int16"),
    ("ffv1:pixel_format=bgr0", "uint16", (47, 61), "not uint16"),
    ("ffv1:pixel_format=gray16le", "uint8", (47, 61, 3), "not uint8"),
    ("h264", *GREY, "h264 would lose bits of uint16; use ffv1"),
    ("h264:pixel_format=gray16le", *COLOUR, "h264 does not support pixel format"),
]


SCALE = {"depth_min": 0.5, "depth_max": 8.0, "shift": 0.0, "use_log": True}


def test_configurations_that_are_refused() -> None:
    for name, dtype, shape, message in REFUSED:
        with pytest.raises(ValueError, match=message):
            named_video(name, np.dtype(dtype), shape)
    good = {"id": "video", "codec": "h264", "pixel_format": "yuv420p"}
    VideoConfig.from_json(good)
    wrong: dict[str, list[object]] = {
        "id": ["other"],
        "codec": ["mpeg", ["h264"]],
        "pixel_format": ["rgb24"],
        "matrix": [99, True],
        "range": ["tv"],
        "gop": [None],
        "threads": [4],
        "depth": [SCALE],  # of colour
    }
    configs: list[Any] = [{"id": "video"}, {"id": "video", "codec": "h264"}, {"id": "other"}]
    configs += [{**good, key: value} for key, values in wrong.items() for value in values]
    deep = {"id": "video", "codec": "hevc", "pixel_format": "gray12le"}
    assert VideoConfig.from_json({**deep, "depth": SCALE}).to_json() == {**deep, "depth": SCALE}
    for depth in (4, {}, {**SCALE, "more": 1}, {**SCALE, "depth_max": 0}, {**SCALE, "use_log": 1}):
        configs.append({**deep, "depth": depth})
    for config in configs:
        with pytest.raises(ValueError, match=r"video|codec|pixel|colour|takes|depth|use_log"):
            VideoConfig.from_json(config)


def depth_frames(count: int) -> np.ndarray:
    """uint16 [count, 47, 61]: moving slopes with noise, all bits, 0 and 65535."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:47, :61]
    frames = np.stack([900 * x + 170 * y + 40 * i for i in range(count)]) % 65536
    frames += rng.integers(0, 3, frames.shape)
    frames[:, 5:9, 7:30] = 0
    frames[:, 20, :] = rng.integers(0, 65536, 61)
    frames[:, 21, ::2] = 65535
    found: np.ndarray = np.minimum(frames, 65535).astype(np.uint16)
    return found


@pytest.mark.parametrize("name", ["ffv1", "ffv1:gop=5"])
def test_16_bit_frames_are_lossless(name: str) -> None:
    frames = depth_frames(5)
    chain = named_video(name, frames.dtype, (47, 61))
    assert chain is not None
    assert chain[0]["pixel_format"] == "gray16le"
    config = VideoConfig.from_json(chain[0])
    decoded = decode_gop(config, 47, 61, encode_gop(config, frames))
    assert (decoded.dtype.name, decoded.shape) == ("uint16", (5, 47, 61))
    assert np.array_equal(decoded, frames)


def test_packets_of_grey_and_colour_are_not_interchangeable() -> None:
    """Packets contain the coding of pixels but no frame size."""
    frames = depth_frames(2)
    deep, colour = VideoConfig("ffv1", "gray16le"), VideoConfig("ffv1", "bgr0")
    with pytest.raises(CodecError, match="cannot decode video"):
        decode_gop(colour, 47, 61, encode_gop(deep, frames))
    pixels = np.zeros((2, 47, 61, 3), np.uint8)
    with pytest.raises(CodecError, match="cannot decode video"):
        decode_gop(deep, 47, 61, encode_gop(colour, pixels))
    with pytest.raises(CodecError, match="cannot be stored encoded"):
        describe_video("ffv1", encode_gop(deep, frames))


# Gop: validation


def test_gop() -> None:
    gop = Gop((b"key", b"p", b"b", b"hidden"), (0, 2, 1, -1))
    assert (gop.num_frames, gop.nbytes) == (3, 11)
    broken: list[tuple[tuple[bytes, ...], tuple[int, ...]]] = [
        *(((), ()), ((b"a",), (-1,)), ((b"a",), (1,)), ((b"a", b"b"), (0, 0))),
        *(((b"a", b"b"), (0,)), ((b"a", b""), (0, 1)), ((b"a", b"b"), (0, -2))),
        ((b"a",) * (MAX_GOP_FRAMES + 1), tuple(range(MAX_GOP_FRAMES + 1))),
        ((b"a",) * (MAX_GOP_PACKETS + 1), (0, *[-1] * MAX_GOP_PACKETS)),
    ]
    for packets, order in broken:
        with pytest.raises(ValueError, match="GOP"):
            Gop(packets, order)


def test_bytes_after_a_packet_are_ignored(tmp_path: Path) -> None:
    """Decoders read there: MPEG-4's looks for a marker."""
    options = {"g": "5", "qscale": "2"}
    path = write_video(tmp_path / "a.avi", pictures(12), "mpeg4", options=options)
    with av.open(str(path)) as file:
        packets = [bytes(packet) for packet in file.demux()]
    for behind in ("", "0000", "0080", "ffff"):
        context, frames = av.CodecContext.create("mpeg4", "r"), list[Any]()
        for data in packets:
            more = np.frombuffer(data + bytes.fromhex(behind * 32), np.uint8)
            frames += context.decode(packet_of(more[: len(data)]))
        images = np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
        np.testing.assert_array_equal(images, decoded_file(path)[1])


def test_invalid_packets() -> None:
    rng = np.random.default_rng(0)
    for codec in ("h264", "hevc", "av1", "vp9"):
        read = packet_format(codec, b"")
        for size in [0, 1, 2, 3, 5, 8, 40] * 40:
            data = rng.integers(0, 256, size, np.uint8).tobytes()
            assert isinstance(read.start(data), Start)
            read.bare_packet(data, True)
    for extra in (b"\1\0\0\0\xff\xe1\0\xff", b"\1"):
        with pytest.raises(ValueError, match="truncated"):
            packet_format("h264", extra)
    with pytest.raises(ValueError, match="truncated"):
        packet_format("hevc", b"\1" * 30)


@pytest.mark.parametrize("name", NAMES)
def test_a_writer_takes_the_name(name: str, tmp_path: Path) -> None:
    write_dataset(tmp_path, {"a": columns(image=FRAMES[:2])}, codecs={"image": name})
    with seqrecord.open(tmp_path) as dataset:
        assert dataset.features["image"].codec[0]["codec"] == name
        assert dataset.episodes["a"][:]["image"].shape == (2, HEIGHT, WIDTH, 3)
