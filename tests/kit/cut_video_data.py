"""Videos in all containers, damaged or unusual, and the results of packing them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

import seqrecord
from seqrecord import open_source
from seqrecord.errors import CodecError, SourceError
from tests.kit.video_file_data import QUIET, copy_packets, pictures, write_fragmented, write_video

Change = Callable[[bytes], bytes]
Made = Callable[[str], Path]

GROUPS = "scenecut=0:keyint=6:min-keyint=6:bframes=2"
CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"x264-params": GROUPS}),
    "hevc": ("libx265", {"x265-params": f"{QUIET}:{GROUPS}:open-gop=0"}),
    "vp9": ("libvpx-vp9", {"g": "6", "cpu-used": "8", "deadline": "realtime"}),
    "av1": ("libsvtav1", {"g": "6", "preset": "12"}),
    "mpeg4": ("mpeg4", {"g": "6"}),
    "gif": ("gif", {}),
}
FRAMES = 24
FILES = {
    **{
        f"{codec}.{ending}": (codec, ending)
        for codec in ("h264", "hevc")
        for ending in ("mp4", "mkv", "ts", "fragmented", "live", "m2ts", "faststart")
    },
    **{
        f"{codec}.{ending}": (codec, ending)
        for codec in ("vp9", "av1")
        for ending in ("mp4", "mkv", "webm", "fragmented", "live", "browser")
    },
    **{
        name: (name.partition(".")[0], name.partition(".")[2])
        for name in ("h264.avi", "h264.mov", "mpeg4.avi", "gif.gif")
    },
}
OPTIONS = {
    "live": ("mkv", {"live": "1"}),  # a segment of unknown size
    "browser": ("webm", {"live": "1"}),  # clusters too
    "m2ts": ("ts", {"mpegts_m2ts_mode": "1"}),
    "faststart": ("mp4", {"movflags": "faststart"}),
}


def file_maker(root: Path) -> Made:
    """Return a function that writes a file of `FILES`, once."""

    @cache
    def make(name: str) -> Path:
        codec, ending = FILES.get(name, name.split("."))
        images = pictures(FRAMES).repeat(1 + (codec == "hevc"), 2)
        if ending == "fragmented":
            return write_fragmented(make(f"{codec}.mp4"), root / f"{codec}-fragmented.mp4")
        if ending in OPTIONS:
            container, options = OPTIONS[ending]
            target = root / f"{codec}-{ending}.{container}"
            copy_packets(make(f"{codec}.mp4"), target, options, slice(None))
            if ending == "browser":
                data = bytearray(target.read_bytes())
                at = data.index(b"\x1f\x43\xb6\x75") + 4
                length = 9 - data[at].bit_length()
                data[at : at + length] = ((2 << 7 * length) - 1).to_bytes(length, "big")
                target.write_bytes(data)
            return target
        pixels = "rgb8" if codec == "gif" else "yuv420p"
        encoder, options = CODECS[codec]
        return write_video(
            root / f"{codec}.{ending}", images, encoder, options=options, pixels=pixels
        )

    return make


class Result:
    """Frames of a file, or the error; warnings and the inventory's lines."""

    def __init__(self, path: Path | str, out: Path, *, in_place: bool = False) -> None:
        self.error: SourceError | CodecError | None = None
        self.frames: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self.times: npt.NDArray[np.float64] = np.empty(0)
        self.notes = ""
        try:
            report = seqrecord.convert(open_source(path), out, workers=1, in_place=in_place)
            with seqrecord.open(out) as dataset:
                (key,) = dataset.episodes.keys()
                rows = dataset.episodes[key][:]
        except (SourceError, CodecError) as error:  # some decoders report damage inside a packet
            self.error = error
            return
        self.frames, self.times = rows["image"], rows["timestamp"]
        assert report.inventory is not None
        self.notes = "\n".join(report.inventory.notes)


def packed(data: bytes, folder: Path, ending: str, *, in_place: bool = False) -> Result:
    folder.mkdir(exist_ok=True)
    (folder / f"a{ending}").write_bytes(data)
    return Result(folder / f"a{ending}", folder.with_name(f"{folder.name}-out"), in_place=in_place)


def hole(start: float, size: int) -> Change:
    def change(data: bytes) -> bytes:
        at = int(len(data) * start)
        size_inside = min(size, len(data) - at)
        return data[:at] + bytes(size_inside) + data[at + size_inside :]

    return change


def declare(path: Path, kind: bytes, at: int, value: int) -> bytes:
    """Overwrite a number in the last box of a kind."""
    data = bytearray(path.read_bytes())
    struct.pack_into(">I", data, data.rindex(kind) + 4 + at, value)
    return bytes(data)


def fragments_of(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Split a fragmented MP4 file into its head, its fragments, and the rest."""
    begins, at = [], 0
    while at < len(data):
        kind = data[at + 4 : at + 8]
        begins += [at] if kind in (b"moof", b"mfra") else []
        at += int.from_bytes(data[at : at + 4], "big")
    parts = [data[i:j] for i, j in zip(begins, [*begins[1:], len(data)], strict=True)]
    return data[: begins[0]], parts[:-1], parts[-1]


def renumbered(fragment: bytes, number: int) -> bytes:
    at = fragment.index(b"mfhd") + 8
    return fragment[:at] + struct.pack(">I", number) + fragment[at + 4 :]


def riff_chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def avi_parts(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Split an AVI file into the content before its frames, the frames' chunks, and its index."""
    movie, index = data.index(b"movi") + 4, data.rindex(b"idx1")
    chunks, at = [], movie
    while at < index:
        size = struct.unpack_from("<I", data, at + 4)[0]
        chunks.append(data[at : at + 8 + size + size % 2])
        at += len(chunks[-1])
    return data[8 : movie - 12], chunks, data[index:]


def joined(made: Made, root: Path) -> dict[str, tuple[bytes, int]]:
    """MPEG-TS files joined by `cat`, with their numbers of frames."""
    whole = made("h264.mp4")
    parts = [
        copy_packets(whole, root / f"{i}.ts", {}, packets).read_bytes()
        for i, packets in enumerate((slice(12), slice(12, None)))
    ]
    return {
        "pieces of one stream": (b"".join(parts), FRAMES),
        "in another order": (parts[1] + parts[0], FRAMES),
        "recordings": (made("h264.ts").read_bytes() * 3, 3 * FRAMES),
    }


def with_sound(path: Path, images: npt.NDArray[np.uint8], seconds: float, start: float) -> Path:
    """Write a video with longer sound, which begins `start` seconds late."""
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=10, options={"x264-params": GROUPS})
        stream.height, stream.width, stream.pix_fmt = *images.shape[1:3], "yuv420p"
        sound: Any = file.add_stream("aac", rate=48000)
        for i, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image)
            frame.pts, frame.time_base = i + round(10 * start), Fraction(1, 10)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
        for i in range(int(seconds * 48000 / 1024)):
            samples = np.zeros((2, 1024), np.float32)
            audio = av.AudioFrame.from_ndarray(samples, "fltp", "stereo")
            audio.sample_rate, audio.pts = 48000, 1024 * i
            file.mux(sound.encode(audio))
        file.mux(sound.encode())
    return path


def files_with_gaps(root: Path) -> Iterator[Path]:
    """Valid videos that look as if frames were missing."""
    images = pictures(12)
    gaps = [0, 33, 66, 100, 3100, 3133, 3166, 9000, 9033, 9066, 9100, 15000]
    late = [2000 + 33 * i for i in range(12)]
    for name, times in (("gaps", gaps), ("late", late)):
        for ending in ("mp4", "mkv"):
            path = root / f"{name}.{ending}"
            yield write_video(path, images, options={"x264-params": GROUPS}, times=times)
    yield (fragmented := write_fragmented(root / "gaps.mp4", root / "fragments.mp4"))
    data = fragmented.read_bytes()
    (root / "no-mfra.mp4").write_bytes(data[: data.rindex(b"mfra") - 4])
    yield root / "no-mfra.mp4"
    data = (root / "gaps.mkv").read_bytes()
    at = data.index(b"\x44\x89\x88")  # Duration, made a Void
    (root / "no-duration.mkv").write_bytes(data[:at] + b"\xec\x89" + bytes(9) + data[at + 11 :])
    yield root / "no-duration.mkv"


def files_with_sound(root: Path) -> Iterator[Path]:
    """Videos with longer sound, some with a late start."""
    for ending in ("mp4", "mkv", "ts", "mov"):
        yield with_sound(root / f"sound.{ending}", pictures(12), 4.0, 0.0)
        yield with_sound(root / f"late.{ending}", pictures(12), 4.0, 1.5)
    yield write_fragmented(root / "sound.mp4", root / "parts.mp4")
