"""Videos with changes within a file, several streams, or false counts of packets."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("av")

import av

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SchemaError, SourceError
from tests.kit.command_line import fail, run
from tests.kit.video_file_data import (
    decoded,
    pictures,
    set_display_matrix,
    write_fragmented,
    write_video,
)

Pixels = npt.NDArray[np.uint8]

_ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1", "vp9": "libvpx-vp9"}
SMALL = np.tile(pictures(4), (1, 2, 2, 1))
WIDE = np.tile(pictures(4), (1, 2, 3, 1))


def packets_of(codec: str, images: Pixels, pixels: str = "yuv420p") -> list[bytes]:
    """One GOP, with its headers in the packets."""
    from seqrecord.video.config import VideoConfig
    from seqrecord.video.encoding import encode_gop

    if codec == "mjpeg":
        return [packet for image in images for packet in jpegs(image)]
    config = VideoConfig(codec, pixels, quality=40, gop=len(images))
    return list(encode_gop(config, images).packets)


def jpegs(image: Pixels) -> list[bytes]:
    context: Any = av.CodecContext.create("mjpeg", "w")
    context.height, context.width = image.shape[:2]
    context.pix_fmt, context.time_base = "yuvj420p", Fraction(1, 30)
    frame = av.VideoFrame.from_ndarray(image).reformat(format="yuvj420p")
    return [bytes(packet) for packet in (*context.encode(frame), *context.encode(None))]


def write(path: Path, codec: str, groups: Sequence[list[bytes]], size: tuple[int, int]) -> Path:
    """A file of these packets, one per frame; each group begins with a keyframe."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(_ENCODERS.get(codec, codec), rate=30)
        stream.height, stream.width = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        number = 0
        for group in groups:
            for place, data in enumerate(group):
                packet = av.Packet(data)
                packet.stream, packet.time_base = stream, Fraction(1, 30)
                packet.pts = packet.dts = number
                packet.is_keyframe = place == 0 or codec == "mjpeg"
                file.mux(packet)
                number += 1
    if os.sched_getscheduler(0) != policy:
        os.sched_setscheduler(0, policy, priority)  # SVT-AV1 sets a real-time priority for root
    return path


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("codec", "ending", "pixels"),
    [
        *(("h264", "mp4", None), ("hevc", "mkv", None), ("av1", "mp4", None), ("vp9", "mkv", None)),
        *(slow("h264", "mkv", None), slow("hevc", "mp4", None)),
        *(slow("av1", "mkv", None), slow("vp9", "mp4", None)),
        ("h264", "mp4", "yuv444p"),
        ("mjpeg", "mkv", None),  # re-encoded
    ],
)
def test_a_changed_size_or_pixel_format_is_an_error(
    tmp_path: Path, codec: str, ending: str, pixels: str | None
) -> None:
    first = packets_of(codec, SMALL)
    other = packets_of(codec, SMALL, pixels) if pixels else packets_of(codec, WIDE)
    path = write(tmp_path / f"a.{ending}", codec, [first, first, other, first], SMALL.shape[1:3])
    usual = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    got = f"128x96 {pixels}" if pixels else f"192x96 {usual}"
    for reference in (False, True) if codec != "mjpeg" else (False,):
        out = tmp_path / f"out-{reference}"
        with pytest.raises(SourceError, match="frame size or pixel format changes") as caught:
            seqrecord.convert(open_source(path), out, in_place=reference, workers=1)
        error = caught.value
        assert (error.file, error.episode, error.feature) == (str(path), "a", "image")
        assert error.expected == f"128x96 {usual}"
        assert str(error.got).startswith(f"{got} at 0.")


def in_order(**options: str) -> list[bytes]:
    """H.264 with packets in display order."""
    context: Any = av.CodecContext.create("libx264", "w")
    context.height, context.width = SMALL.shape[1:3]
    context.pix_fmt, context.time_base = "yuv420p", Fraction(1, 30)
    context.options = {"bf": "0", **options}
    packets = []
    for number, image in enumerate(SMALL):
        frame = av.VideoFrame.from_ndarray(image).reformat(format="yuv420p")
        frame.pts, frame.time_base = number, Fraction(1, 30)
        packets += context.encode(frame)
    return [bytes(packet) for packet in (*packets, *context.encode(None))]


def test_changed_headers_with_equal_frames(tmp_path: Path) -> None:
    """Another level does not change the frames."""
    groups = [in_order(), in_order(level="5.1"), in_order()]
    path = write(tmp_path / "a.mp4", "h264", groups, SMALL.shape[1:3])
    for reference in (False, True):
        out = tmp_path / f"out{reference}"
        seqrecord.convert(open_source(path), out, in_place=reference, workers=1)
        assert seqrecord.open(out).episodes["a"][:]["image"].shape == (12, *SMALL.shape[1:])


def test_frames_of_vp9_may_change_between_keyframes(tmp_path: Path) -> None:
    """Like WebRTC's: a frame with another size, scaled from previous frames."""
    first = packets_of("vp9", SMALL)
    # Marker 2, profile 0, a shown, resilient inter frame; references with other sizes.
    bits = f"10{0:02b}0111" + f"{0:08b}" + "0000" * 3 + "000" + f"{191:016b}{95:016b}"
    inner = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8), "big")
    path = write(tmp_path / "a.webm", "vp9", [[*first, inner + bytes(20)]], SMALL.shape[1:3])
    with pytest.raises(SourceError, match=r"128x96 yuv420p; got: 192x96 yuv420p at 0\.13"):
        seqrecord.convert(open_source(path), tmp_path / "out", workers=1)


# --- odd sizes -------------------------------------------------------------------------------


def test_odd_sizes(tmp_path: Path) -> None:
    """4:2:0 does not support them."""
    odd = SMALL[:, :95, :127].copy()
    path = write(tmp_path / "a.mkv", "mjpeg", [jpegs(odd[0])], (95, 127))
    for codecs, most in ((None, 3), ({"image": "ffv1"}, 0)):
        place = tmp_path / f"odd{most}"
        seqrecord.convert(open_source(path), place, workers=1, codecs=codecs)
        [found] = seqrecord.open(place).episodes["a"][:]["image"]
        assert np.abs(found.astype(int) - decoded(path)[1][0]).mean() <= most
    path = write_video(tmp_path / "b.mkv", odd, "ffv1", pixels="bgr0")
    seqrecord.convert(open_source(path), tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        np.testing.assert_array_equal(dataset.episodes["b"][:]["image"], odd)
    for codec in ("h264", "hevc"):  # and a writer
        chains = {"image": [{"id": "video", "codec": codec, "pixel_format": "yuv420p"}]}
        writer = seqrecord.SeqRecordWriter(tmp_path / codec, codecs=chains)
        with (
            pytest.raises(seqrecord.SeqRecordError, match=r"odd sizes.*ffv1.*127x95") as refused,
            writer,
            writer.episode("e") as episode,
        ):
            episode.append({"image": odd[0]})
        assert refused.value.feature == "image"
        assert "Errno" not in str(refused.value)


# --- pixel formats, and changes of values ----------------------------------------------------


def write_native(path: Path, codec: str, pixels: str, count: int = 3) -> Pixels:
    """Write a video with all values of a pixel format; returns what PyAV decodes, without RGB."""
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as file:
        options = {"x265-params": "log-level=none:lossless=1:pools=none:frame-threads=1"}
        stream: Any = file.add_stream(codec, rate=30, options=options)
        stream.height, stream.width, stream.pix_fmt = 96, 128, pixels
        stream.codec_context.thread_count = 1
        for number in range(count):
            frame = av.VideoFrame(128, 96, pixels)
            bits = max(part.bits for part in frame.format.components)
            for plane in frame.planes:
                values = rng.integers(0, 1 << bits, plane.buffer_size // (1 + (bits > 8)))
                order = ">" if frame.format.is_big_endian else "<"
                plane.update(values.astype(f"{order}u{1 + (bits > 8)}").tobytes())
            frame.pts, frame.time_base = number, Fraction(1, 30)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    with av.open(str(path)) as file:
        frames: list[Any] = list(file.decode(file.streams.video[0]))
    is_grey = pixels.startswith("gray") and pixels != "gray"
    return np.stack([frame.to_ndarray(format=None if is_grey else "rgb24") for frame in frames])


FORMATS = [  # encoder, container, pixel format, its video codec when packed
    *(("ffv1", "mkv", f"gray{bits}le", "ffv1") for bits in (10, 12, 16)),
    *(("libx265", "mp4", f"gray{bits}le", "hevc") for bits in (10, 12)),
    ("png", "mov", "gray16be", "ffv1"),
    *(("ffv1", "mkv", pixels, "ffv1") for pixels in ("gray", "bgr0", "yuv420p", "yuv422p10le")),
    *(("libx265", "mp4", pixels, "hevc") for pixels in ("gray", "yuv420p10le", "yuv444p12le")),
    ("libvpx-vp9", "webm", "yuv420p", "vp9"),
    ("prores_ks", "mov", "yuv422p10le", "h264"),
]


@pytest.mark.parametrize(("encoder", "ending", "pixels", "codec"), FORMATS)
def test_the_pixel_format_determines_dtype_and_shape(
    tmp_path: Path, encoder: str, ending: str, pixels: str, codec: str
) -> None:
    path = tmp_path / f"depth.{ending}"
    want = write_native(path, encoder, pixels)
    source = open_source(path)
    spec = source.schema()["image"]
    is_grey = pixels != "gray" and pixels.startswith("gray")
    assert spec.dtype == (np.uint16 if is_grey else np.uint8)
    assert spec.shape == want.shape[1:]
    assert spec.codec[0]["codec"] == codec
    assert spec.kind == (None if is_grey else "image")
    lossless = {"image": "ffv1"} if encoder == "prores_ks" else None
    numbers = {"image": "balanced"}
    places: list[Path] = []
    for codecs in (lossless, numbers):
        places.append(tmp_path / f"{len(places)}")
        report = seqrecord.convert(source, places[-1], workers=1, codecs=codecs, strict=True)
        is_rounded = not is_grey and "1" in pixels.replace("gbrp", "")
        assert any("bits rounded to 8" in note for note in report.inventory.notes) == is_rounded
    for place in (*places, *([path] if codec in ("hevc", "h264", "vp9") and not lossless else [])):
        with seqrecord.open(place) as dataset:
            np.testing.assert_array_equal(dataset.episodes["depth"][:]["image"], want, strict=True)


CHANGES = [  # encoder, container, pixel format, whether rotated; inventory: before and why
    ("prores_ks", "mov", "yuv422p10le", False, "prores yuv422p10le", "packets of prores"),
    ("mjpeg", "mkv", "yuvj420p", False, "mjpeg yuvj420p", "packets of mjpeg"),
    ("mpeg4", "mp4", "yuv420p", False, "mpeg4 yuv420p", "packets of mpeg4"),
    ("libvpx", "webm", "yuv420p", False, "vp8 yuv420p", "packets of vp8"),
    ("libx264", "mp4", "yuv420p", True, "h264 yuv420p", "the file rotates or mirrors them"),
]


@pytest.mark.parametrize(("encoder", "ending", "pixels", "is_turned", "before", "why"), CHANGES)
def test_changed_pixels_are_in_the_inventory(
    tmp_path: Path, encoder: str, ending: str, pixels: str, is_turned: bool, before: str, why: str
) -> None:
    """`--strict` refuses them, and the codec that it names changes none."""
    path = write_video(tmp_path / f"a.{ending}", SMALL, encoder, pixels=pixels)
    if is_turned:
        set_display_matrix(path, -1, 0, 0, -1)
    want = decoded(path)[1][:, ::-1, ::-1] if is_turned else decoded(path)[1]
    if encoder != "prores_ks":  # one of them by the command line
        with pytest.raises(SourceError, match=f"would change pixels: {why}") as caught:
            seqrecord.convert(open_source(path), tmp_path / "out", workers=1, strict=True)
        assert (caught.value.episode, caught.value.feature) == ("a", "image")
        assert str(caught.value.got).startswith(f"{before}, to h264")
        remedy = str(caught.value).partition("(--codec ")[2].partition(")")[0]
        seqrecord.convert(open_source(path), tmp_path / "lossy", workers=1)
    else:
        message = fail("write", "--src", path, "--dst", tmp_path / "out", "--strict", "--quiet")
        remedy = message.partition("(--codec ")[2].partition(")")[0]
        run("write", "--src", path, "--dst", tmp_path / "lossy", "--quiet")
    shown = run("info", tmp_path / "lossy").stdout
    assert f"left out  exact pixels of image: 4 frames, {before} encoded as h264 yuv4" in shown
    assert f": {why}" in shown
    assert remedy == "image=ffv1"
    assert f"--codec {remedy} keeps them" in shown
    run("write", "--src", path, "--dst", tmp_path / "kept", "--codec", remedy, "--strict")
    shown = run("info", tmp_path / "kept").stdout
    assert "exact pixels" not in shown
    assert f"image: 4 frames without loss, {before} encoded as ffv1 bgr0: {why}" in shown
    assert ("10 bits rounded to 8" in shown) == ("10" in pixels)
    np.testing.assert_array_equal(seqrecord.open(tmp_path / "kept").episodes["a"][:]["image"], want)


def test_depth_in_a_video(tmp_path: Path) -> None:
    """Of grey above 8 bits; colours are a rendering of depth."""
    (tmp_path / "cameras/run").mkdir(parents=True)
    for name, pixels in (("depth", "gray16le"), ("left_depth", "yuv420p")):
        write_native(tmp_path / f"cameras/run/{name}.mkv", "ffv1", pixels)
    source = open_source(tmp_path / "cameras", by_folder=True)
    assert [(spec.kind, spec.unit) for spec in source.schema().values()][:2] == [
        *(("depth", None), ("image", None))
    ]
    for number, units in enumerate((None, {"depth": "mm"})):
        place = tmp_path / f"{number}"
        report = seqrecord.convert(source, place, workers=1, units=units)
        notes = [note for note in report.inventory.notes if "without a unit" in note]
        assert notes == [
            "feature depth: uint16 depth without a unit in the files; --unit depth=mm"
        ] * (units is None)
        assert seqrecord.open(place).features["depth"].unit == (units and units["depth"])
    options: dict[str, Any] = {"kinds": {"left_depth": "depth"}, "units": {"left_depth": "mm"}}
    with pytest.raises(SchemaError, match="no depth in a unit"):
        seqrecord.convert(source, tmp_path / "c", workers=1, **options)


def test_deep_colour_is_uint16_on_request(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    path = tmp_path / "videos/a.mkv"
    write_native(path, "ffv1", "yuv422p10le")
    with av.open(str(path)) as file:
        want = [frame.to_ndarray(format="rgb48le") for frame in file.decode()]
    run(
        *("write", "--src", path.parent, "--dst", tmp_path / "out", "--strict"),
        *("--source-option", "dtype=uint16"),
    )
    with seqrecord.open(tmp_path / "out") as dataset:
        found = dataset.episodes["a"][:]["image"]
        assert [*dataset.features["image"].codec] != []
    assert (found.dtype, len(np.unique(found)) > 500) == (np.uint16, True)
    np.testing.assert_array_equal(found, want)
    message = fail(
        *("index", path.parent, "--dst", tmp_path / "index", "--source-option", "dtype=uint16")
    )
    assert "cannot be read in place" in message
    with pytest.raises(SourceError, match="invalid option dtype"):
        open_source(path, dtype="uint17")


# --- several streams -------------------------------------------------------------------------


def write_streams(path: Path, streams: Sequence[Pixels], titles: Sequence[str] = ()) -> Path:
    with av.open(str(path), "w") as file:
        made: list[Any] = []
        for number, images in enumerate(streams):
            stream: Any = file.add_stream("libx264", rate=30)
            stream.height, stream.width = images.shape[1:3]
            stream.pix_fmt = "yuv420p"
            if titles:
                stream.metadata["title"] = titles[number]
            made.append(stream)
        for number in range(len(streams[0])):
            for stream, images in zip(made, streams, strict=True):
                if number >= len(images):
                    continue
                frame = av.VideoFrame.from_ndarray(images[number])
                frame.pts, frame.time_base = number, Fraction(1, 30)
                file.mux(stream.encode(frame))
        for stream in made:
            file.mux(stream.encode())
    return path


def test_a_stream_is_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_streams(tmp_path / "a.mkv", [SMALL, WIDE], ["small", "wide"])
    for stream, width in ((None, 128), (0, 128), (1, 192), ("wide", 192)):
        caplog.clear()
        report = seqrecord.convert(
            open_source(path, stream=stream), tmp_path / f"out-{stream}", workers=1
        )
        with seqrecord.open(tmp_path / f"out-{stream}") as dataset:
            assert dataset.episodes["a"][0]["image"].shape == (96, width, 3)
        [left] = report.inventory.left_out
        assert left.unit == "streams"
        assert f"{320 - width}x96" in left.pattern
        assert left.is_data == (stream is None)
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        warnings = [text for text in warnings if "video streams" in text]
        assert len(warnings) == (stream is None)
        assert all("stream=1 ('wide'" in text for text in warnings)
    source: Any = open_source(write_streams(tmp_path / "b.mkv", [SMALL, WIDE[:2]]), stream=1)
    [info] = source.episodes()
    assert len(source.timestamps(info)) == info.num_frames == 2


def test_an_unknown_stream(tmp_path: Path) -> None:
    path = write_streams(tmp_path / "a.mkv", [SMALL, WIDE], ["same", "same"])
    command = ("write", "--src", path, "--dst", tmp_path / "o", "--source-option")
    for stream in (2, -1, "other"):
        output = fail(*command, f"stream={stream}")
        assert "no such video stream" in output
        assert "stream=0 ('same', h264 128x96); stream=1 ('same', h264 192x96)" in output
    run(*command, "stream=1", "--quiet")


# --- claims ----------------------------------------------------------------------------------


def boxes(data: bytes | bytearray, kind: bytes) -> int:
    """Offset of the first box's body."""
    return data.index(kind) + 4


TABLE, PACKETS = "larger than its box", "more packets than fit into the file"
CLAIMS: list[tuple[bytes, int, tuple[int, ...], str]] = [  # box, offset, values, error
    (b"stsz", 4, (0, 88_000_000), TABLE),
    (b"stsz", 4, (1, 88_000_000), PACKETS),  # of equal sizes
    *((kind, 4, (88_000_000,), TABLE) for kind in (b"stts", b"stsc", b"stco", b"stss", b"ctts")),
    (b"trun", 4, (88_000_000,), PACKETS),
    (b"trun", 0, (1, 88_000_000), PACKETS),  # no table: the track's sizes
]


def test_an_mp4_with_too_large_counts(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "a.mp4", pictures(8))
    fragments = write_fragmented(whole, tmp_path / "b.mp4")
    for kind, place, values, match in CLAIMS:
        path = tmp_path / "claims.mp4"
        data = bytearray((fragments if kind == b"trun" else whole).read_bytes())
        struct.pack_into(f">{len(values)}I", data, boxes(data, kind) + place, *values)
        path.write_bytes(data)
        with pytest.raises(SourceError, match=match) as caught:
            open_source(path).schema()
        assert caught.value.file == str(path)
        assert caught.value.offset is not None


@pytest.mark.parametrize(
    ("name", "video", "sound", "flags"),
    [
        ("a.mov", "mpeg4", "pcm_s16le", ""),
        ("a.mov", "libx264", "pcm_s24le", "faststart"),
        ("a.mp4", "libx264", "aac", ""),
        ("a.mp4", "libx264", "aac", "frag_keyframe+empty_moov+default_base_moof"),
        ("a.mp4", "libx264", "aac", "dash+delay_moov+frag_every_frame"),
        ("a.m4v", "mpeg4", "aac", "faststart"),
    ],
)
def test_files_with_correct_counts(
    tmp_path: Path, name: str, video: str, sound: str, flags: str
) -> None:
    """In uncompressed sound each sample has a few bytes."""
    path = tmp_path / name
    with av.open(str(path), "w", options={"movflags": flags} if flags else {}) as file:
        picture: Any = file.add_stream(video, rate=30)
        picture.height, picture.width = SMALL.shape[1:3]
        picture.pix_fmt = "yuv420p"
        audio: Any = file.add_stream(sound, rate=48000, layout="mono")
        for number, image in enumerate(np.tile(SMALL, (4, 1, 1, 1))):
            frame = av.VideoFrame.from_ndarray(image)
            frame.pts, frame.time_base = number, Fraction(1, 30)
            file.mux(picture.encode(frame))
        rate, size = 48000, audio.codec_context.frame_size or 1024
        for number in range(20 * 48000 // size if sound.startswith("pcm") else 20):
            dtype = {"s16": "i2", "s32": "i4", "fltp": "f4"}[audio.codec_context.format.name]
            values = np.zeros((1, size), dtype)
            silence = av.AudioFrame.from_ndarray(values, audio.codec_context.format.name, "mono")
            silence.sample_rate, silence.pts = rate, number * size
            file.mux(audio.encode(silence))
        file.mux(picture.encode())
        file.mux(audio.encode())
    assert open_source(path).schema()["image"].shape == (96, 128, 3)


def test_changed_decoder_settings(tmp_path: Path) -> None:
    """Two sample descriptions, as in files cut from several cameras."""
    path = write_video(tmp_path / "a.mp4", pictures(8))
    data = bytearray(path.read_bytes())
    at = boxes(data, b"stsd")
    entry = data[at + 8 : at - 8 + int.from_bytes(data[at - 8 : at - 4], "big")]
    assert data.index(b"mdat") < data.index(b"moov")  # offsets of packets stay
    data[at + 8 : at + 8] = entry
    struct.pack_into(">I", data, at + 4, 2)
    for kind in (b"stsd", b"stbl", b"minf", b"mdia", b"trak", b"moov"):
        begin = boxes(data, kind) - 8
        (size,) = struct.unpack_from(">I", data, begin)
        struct.pack_into(">I", data, begin, size + len(entry))
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"decoder settings change.*ffmpeg"):
        open_source(path).schema()
