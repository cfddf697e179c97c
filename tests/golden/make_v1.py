"""Makes the golden files of format version 1: `python -m tests.golden.make_v1`.

No test runs this. It makes missing datasets only. After the first release datasets may be added
under new names; existing ones may neither change nor disappear, even if today's presets differ.
Each dataset `v1/NAME/` has its expected content in `v1/NAME.json`, made from the frames passed to
the writer. `python -m tests.golden.make_v1 hexdump` prints the worked example of docs/format.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

import seqrecord
from seqrecord import Episode, SeqRecordWriter
from seqrecord.checksum import crc32c
from seqrecord.codecs import resolve
from seqrecord.codecs.video.config import VideoConfig
from seqrecord.codecs.video.decoding import decode_gop
from seqrecord.codecs.video.encoding import encode_gop
from seqrecord.codecs.video.gops import Gop
from seqrecord.edit import (
    add_feature,
    clean,
    delete_episodes,
    drop_features,
    rewrite_files,
    trim_episodes,
)
from seqrecord.errors import ConflictError
from seqrecord.format.edits import Delete, Split, encode_edit
from seqrecord.format.footer import EpisodePart, Footer, encode_footer, encode_header
from seqrecord.format.pages import PageCodec, slice_table
from seqrecord.format.references import ExternalFile, ExternalList, ReferencedFile, list_path
from seqrecord.format.rows import chunk_row, gap_rows
from seqrecord.schema import Block, CodecConfig, EncodedImage, FeatureSpec, Schema
from seqrecord.sources.video.files import VideoFile
from seqrecord.sources.video.tables import read_references, read_table
from seqrecord.storage import LocalStorage
from seqrecord.writing.own_files import new_writer_id
from seqrecord.writing.record_file import RecordFileWriter

__all__ = ["GOLDEN", "describe_frame", "expected"]

GOLDEN = Path(__file__).parent / "v1"

Frame = Mapping[str, npt.NDArray[Any]]
Episodes = Mapping[str, tuple[Mapping[str, Any], Sequence[Frame]]]
Made = tuple[Schema, Episodes]
"""Schema and episodes that a reader must return."""

_HEIGHT, _WIDTH = 16, 20
_U1, _F4 = np.dtype("u1"), np.dtype("<f4")
_ZSTD: CodecConfig = {"id": "zstd", "level": 1}
_DTYPES = "|b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split()  # noqa: SIM905
_CHAINS: dict[str, list[CodecConfig]] = {
    "none": [],
    "delta_y": [{"id": "seqrecord.delta", "axis": -2}],
    "delta_x_wide": [{"id": "seqrecord.delta", "axis": -1, "width": 4}],
    "bias": [{"id": "seqrecord.delta", "axis": -1}, {"id": "seqrecord.bias"}],
    "green": [{"id": "seqrecord.subtract_green"}],
    "blosclz": [{"id": "blosc", "cname": "blosclz", "clevel": 9, "shuffle": 1, "blocksize": 0}],
    "blosc_lz4": [{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2, "blocksize": 256}],
    "blosc_lz4hc": [{"id": "blosc", "cname": "lz4hc", "clevel": 5, "shuffle": 1, "blocksize": 0}],
    "blosc_zlib": [{"id": "blosc", "cname": "zlib", "clevel": 5, "shuffle": 0, "blocksize": 0}],
    "blosc_zstd": [{"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": -1, "blocksize": 0}],
    "zstd": [{"id": "zstd", "level": 19}],
    "zstd_checksum": [{"id": "zstd", "level": -7, "checksum": True}],
    "lz4": [{"id": "lz4", "acceleration": 1}],
    "everything": [
        {"id": "seqrecord.subtract_green"},
        {"id": "seqrecord.delta", "axis": -3},
        {"id": "seqrecord.bias"},
        {"id": "blosc", "cname": "zstd", "clevel": 1, "shuffle": 1, "blocksize": 0},
    ],
}


def expected(schema: Schema, episodes: Episodes) -> dict[str, Any]:
    """Expected content as JSON, readable in a diff."""
    return {
        "features": [str(spec) for spec in schema.values()],
        "episodes": [
            {"key": key, "metadata": metadata, "frames": [describe_frame(f) for f in frames]}
            for key, (metadata, frames) in episodes.items()
        ],
    }


def describe_frame(frame: Mapping[str, Any]) -> dict[str, str]:
    """Each feature of the frame: dtype, shape, first bytes and SHA-256 of all bytes.

    Text and bytes are kept as they are.
    """
    return {
        name: f"{array.dtype.str} {list(array.shape)} {array.tobytes()[:24].hex()} "
        f"{hashlib.sha256(array.tobytes()).hexdigest()}"
        if isinstance(array, np.ndarray)
        else repr(array)
        for name, array in frame.items()
    }


def _scene(count: int) -> list[dict[str, npt.NDArray[Any]]]:
    """Frames of a camera, with payloads in NaNs and negative zeros."""
    y, x = np.mgrid[:_HEIGHT, :_WIDTH].astype("<i8")
    frames = []
    for i in range(count):
        noise = (x * 7919 + y * 104729 + i * 1299709) % 13
        image = np.stack([x * 9 + noise, y * 11 + i, x + y + noise], axis=-1).astype("|u1")
        depth = ((x + 2 * y + 40 + i) / 16).astype("<f4")
        bits = depth.view("<u4")
        bits[0, :4] = [0x7FC00001, 0xFFC12345, 0x80000000, 0x7F800000]
        flow = np.stack([(x - y + i) / 32, (noise - 6) / 64], axis=-1).astype("<f4")
        mask = ((x > 9) * 100 + (y > 7) * 10).astype("|u1")
        pose = ((np.arange(7) + i) / 8).astype("<f8")
        frame = {"image": image, "depth": depth, "flow": flow, "mask": mask, "pose": pose}
        if i == count - 1:
            del frame["flow"], frame["mask"]
        frames.append(frame)
    return frames


def _schema(frames: Sequence[Frame], codec: str | Mapping[str, Sequence[CodecConfig]]) -> Schema:
    """Features of the frames; presets are resolved, so that the file contains the codecs."""
    specs: dict[str, FeatureSpec] = {}
    for frame in frames:
        for name, array in frame.items():
            chain = codec if isinstance(codec, str) else codec.get(name, ())
            resolved = resolve(chain, array.dtype, array.shape, feature=name)
            specs.setdefault(name, FeatureSpec(name, array.dtype, array.shape, resolved))
    return Schema(list(specs.values()))


def _dtypes() -> list[dict[str, npt.NDArray[Any]]]:
    """One frame of every dtype, with its minimum, its maximum and a value between."""
    frame = {}
    for text in _DTYPES:
        dtype = np.dtype(text)
        bits = np.stack([np.full(dtype.itemsize, b, "u1") for b in (0x00, 0x01, 0xFF)])
        bits = bits[:2] if dtype == np.bool_ else bits
        frame[text.strip("<|")] = np.ascontiguousarray(bits).reshape(-1).view(dtype)
    return [frame]


def _codecs() -> list[dict[str, npt.NDArray[Any]]]:
    """The same wrapping image, three pixels wide, under every codec of version 1."""
    frames = []
    for i in range(2):
        values = (np.arange(8 * 4 * 3) ** 2 * 37 + i * 60000).astype("<u2").reshape(8, 4, 3)
        frames.append(
            {name: values if name != "delta_x_wide" else values[..., :2] for name in _CHAINS}
        )
    return [{name: np.ascontiguousarray(a) for name, a in frame.items()} for frame in frames]


def _measured() -> Made:
    """Rows enough for differences to restart, and floats with noise in their low bytes.

    LZ4 would compress this noise slightly, so a writer stores it.
    """
    y, x = np.mgrid[:35, :30].astype("<i8")
    noise = np.random.default_rng(0).integers(0, 256, (35, 30, 2)).astype("<u4")
    noise[:, :8] = 0
    base = np.stack([(x + 3 * y + 60) / 8, (x - 2 * y + 99) / 16], axis=-1).astype("<f4")
    flow = (base.view("<u4") ^ noise).view("<f4")
    arrays = {
        "image": np.stack([x * 7 + noise[..., 0] % 5, y * 6, x + y], axis=-1).astype("|u1"),
        "flow": flow,
        "depth": np.ascontiguousarray(flow[..., 0]),
        "mask": ((x > 9) * 100 + (y > 7) * 10).astype("|u1"),
        "ticks": (x * y * 31).astype("<u2"),
    }
    names = [f"{name}_{preset}" for preset in ("balanced", "small") for name in arrays]
    frame = {name: arrays[name.partition("_")[0]] for name in [*names, "image_fast"]}
    specs = []
    for name, array in frame.items():
        chain = resolve(name.rpartition("_")[2], array.dtype, array.shape, feature=name)
        specs.append(FeatureSpec(name, array.dtype, array.shape, chain))
    return Schema(specs), {"env/P001": ({}, [frame])}


def _variable() -> Made:
    schema = Schema(
        [
            FeatureSpec("points", _F4, (None, 3), (_ZSTD,)),
            FeatureSpec("text", _U1, (None,)),
            FeatureSpec("grid", np.dtype("|b1"), (None, None), (_ZSTD,)),
            FeatureSpec("scalar", np.dtype("<i8"), ()),
        ]
    )
    frames = []
    for i in range(7):
        frame: dict[str, npt.NDArray[Any]] = {
            "points": np.arange(3 * i, dtype="<f4").reshape(i, 3) * np.float32(-0.5),
            "grid": np.indices((i + 1, 3)).sum(axis=0) % 2 == 0,
            "scalar": np.array(-i, "<i8"),
        }
        if i % 3 != 1:
            frame["text"] = np.frombuffer(f"Bild {i}: größer".encode(), "|u1")
        frames.append(frame)
    return schema, {"größer/日本 1": ({"größe": [1, 2.5, None, "日本"], "deep": {"a": {}}}, frames)}


def _append(
    writer: SeqRecordWriter, key: str, frames: Iterable[Mapping[str, Any]], **options: Any
) -> None:
    with writer.episode(key, **options) as episode:
        for frame in frames:
            episode.append(frame)


def _write(
    root: Path, made: Made, *, stored: Mapping[str, Any] | None = None, **options: Any
) -> Made:
    """Write the dataset; `stored` replaces arrays by encoded images."""
    schema, episodes = made
    codecs = {feature: list(spec.codec) for feature, spec in schema.items()}
    with SeqRecordWriter(root, schema=schema, codecs=codecs, **options) as writer:
        for key, (metadata, frames) in episodes.items():
            stored_frames = ({**frame, **(stored or {})} for frame in frames)
            _append(writer, key, stored_frames, metadata=metadata)
    return made


def _features(root: Path) -> Schema:
    with seqrecord.open(root) as dataset:
        return dataset.features


@contextlib.contextmanager
def _referring_to(
    root: Path, schema: Schema, files: ExternalList, numbers: Mapping[str, tuple[str, int]]
) -> Iterator[RecordFileWriter]:
    """Open a record file whose pages may refer to these files."""
    with contextlib.closing(LocalStorage(root)) as storage:
        storage.put(list_path(files.id), files.encode(), expected=None)
        with RecordFileWriter(
            *(storage, schema),
            writer=new_writer_id(),
            max_file_size=1 << 20,
            externals=numbers,
            checksums=True,
        ) as writer:
            yield writer
    seqrecord.reindex(root)


def _files(root: Path) -> Made:
    """Pages that refer to PNG and npy files of a folder and to ranges of a file; three frames lack
    one feature each."""
    folder = root / "original"
    folder.mkdir(parents=True)
    y, x = np.mgrid[:6, :9]
    joined = folder / "all.bin"
    frames: list[dict[str, Any]] = []
    written: list[dict[str, Any]] = []
    with joined.open("wb") as file:
        for n, left_out in enumerate(("image", "depth", "range", "", "")):
            image = np.stack([x * n, y + n, x + y], axis=-1).astype("u1")
            depth = (x / (n + 1)).astype("f4")
            Image.fromarray(image).save(folder / f"{n}.png")
            np.save(folder / f"{n}.npy", depth)
            start = file.tell()
            file.write((folder / f"{n}.png").read_bytes())
            stop = file.tell()
            file.write(b"between")
            arrays = {"image": image, "depth": depth, "range": image}
            places = {
                "image": ReferencedFile(str(folder / f"{n}.png")),
                "depth": ReferencedFile(str(folder / f"{n}.npy")),
                "range": ReferencedFile(str(joined), start, stop),
            }
            for target, values in ((frames, arrays), (written, places)):
                target.append({k: v for k, v in values.items() if k != left_out})
    png, npy = ({"id": "seqrecord.image", "format": name} for name in ("png", "npy"))
    schema = Schema(
        [
            FeatureSpec("image", _U1, (6, 9, 3), (png,)),
            FeatureSpec("depth", _F4, (6, 9), (npy,), group=1),
            FeatureSpec("range", _U1, (6, 9, 3), (png,), group=2),
        ]
    )
    referenced = ExternalFile("/originals", "all.bin", joined.stat().st_size, "mtime 7")
    files = ExternalList((ExternalFile("/originals", "", 0), referenced))
    numbers = {os.path.realpath(folder): (files.id, 0), str(joined): (files.id, 1)}
    with _referring_to(root, schema, files, numbers) as writer:
        writer.begin("e", ordinal=0, chunk_frames=3, metadata="{}")
        for frame in written:
            writer.append(Block.of(frame))
        writer.end()
    return schema, {"e": ({}, frames)}


def _groups(root: Path) -> Made:
    """Three groups of irregular chunks, text and bytes, frames a second, splits and a deletion."""
    schema = Schema(
        [
            FeatureSpec("image", _U1, (70, 60), kind="image"),
            FeatureSpec("pose", _F4, (3,), group=1, kind="pose", unit="m"),
            FeatureSpec("task", _U1, (None,), group=1, kind="text", value="text"),
            FeatureSpec("packet", _U1, (None,), (_ZSTD,), group=2, value="bytes"),
        ]
    )

    def frame(number: int) -> dict[str, Any]:
        y, x = np.mgrid[:70, :60]
        values = {
            "pose": np.array([number, -0.0, number / 8], "<f4"),
            "task": f"größer {number}" if number % 5 else "",
            "packet": bytes([number % 251] * (number % 4)),
        }
        if number % 60 == 0:
            values["image"] = (x * 3 + y * 2 + number).astype(_U1)
        if 65 <= number < 77:
            del values["task"]
        return values

    lengths = {"a": 90, "b": 3, "deleted": 2, "c": 1}
    written = {key: [frame(number) for number in range(n)] for key, n in lengths.items()}
    codecs = {name: list(spec.codec) for name, spec in schema.items()}
    with SeqRecordWriter(root, schema=schema, codecs=codecs, chunk_frames=130) as writer:
        for key, frames in written.items():
            with writer.episode(key, fps=12.5 if key == "a" else None) as episode:
                for number, values in enumerate(frames):
                    episode.append(values)
                    if number == 7:
                        episode.flush()
    with seqrecord.open(root) as dataset:
        uids = {key: (episode.uid,) for key, episode in dataset.episodes.items()}
    train, validation = Split("train", uids["a"]), Split("val", uids["b"])
    data = encode_edit([train, validation, Delete(uids["deleted"])])
    (root / "edits").mkdir()
    (root / "edits" / "00000000-made.json").write_bytes(data)
    (root / "manifest.json").unlink()
    for path in (root / "index").iterdir():
        path.unlink()
    seqrecord.reindex(root)
    del written["deleted"]
    return schema, {key: ({}, frames) for key, frames in written.items()}


_NAMES = ("gone", "stays", "small")
_GROUPS = {name: {"group": int(name == "small")} for name in _NAMES}


def _three(key: str, number: int) -> dict[str, Any]:
    """A frame of `_NAMES`; `small` has a group of its own."""
    return {name: np.arange(3, dtype="<f4") + number + len(key + name) for name in _NAMES}


def _rewritten(root: Path) -> Made:
    """Record files without a deleted episode and without pages of dropped features.

    One dropped feature was alone in its group, the other shared its group.
    """
    lengths = {"a": 5, "deleted": 3, "bb": 2}
    with SeqRecordWriter(
        root, codecs="raw", features=_GROUPS, chunk_frames=2, max_file_size=700
    ) as writer:
        for key, count in lengths.items():
            frames = [_three(key, i) for i in range(count)]
            del frames[0]["gone"]
            _append(writer, key, frames, metadata={"key": key})
    delete_episodes(root, "deleted")
    drop_features(root, ["gone", "small"])
    rewrite_files(root, min_unused=0.001, max_file_size=1000)
    clean(root, older_than=0)
    return _features(root), {
        key: ({"key": key}, [{"stays": _three(key, i)["stays"]} for i in range(lengths[key])])
        for key in ("a", "bb")
    }


def _trimmed(root: Path) -> Made:
    """An episode trimmed at both ends, also within chunks.

    One feature lacks frames on both sides of the start, another was added later.
    """
    frames: list[dict[str, Any]] = [
        {
            "time": np.array(i + i % 2 / 4, "<f8"),
            "raw": np.arange(3, dtype="<f4") + i,
            **({} if i in (2, 6, 9) else {"text": f"frame {i}"}),
        }
        for i in range(17)
    ]
    features: dict[str, Any] = {"time": {"kind": "timestamp", "unit": "s"}, "text": {"group": 1}}
    with SeqRecordWriter(
        root, codecs="raw", features=features, chunk_frames=4, max_file_size=700, statistics=False
    ) as writer:
        for key, count in (("a", 17), ("b", 3)):
            _append(writer, key, frames[:count])
    trim_episodes(root, "a", slice(5, -2))
    add_feature(root, "late", lambda e: np.arange(len(e), dtype="<i4"), codec="raw")
    trim_episodes(root, "a", slice(None, -1))
    clean(root, older_than=0)
    return _features(root), {
        key: ({}, [{**frame, "late": np.array(i, "<i4")} for i, frame in enumerate(selected)])
        for key, selected in (("a", frames[5:14]), ("b", frames[:3]))
    }


def _changed(root: Path) -> Made:
    """Added and dropped features: alone in their group, in shared groups, and with equal names.

    One episode, by a writer that began before, lacks the added feature.
    """

    def again(episode: Episode) -> list[Any]:
        return [np.full(2, i, "<i2") if i != 1 else None for i in range(len(episode))]

    with SeqRecordWriter(root, codecs="raw", features=_GROUPS, statistics=False) as writer:
        for key in ("a", "b"):
            _append(writer, key, [_three(key, i) for i in range(3)])
    late = SeqRecordWriter(root, mode="append")
    _append(late, "late", [_three("late", i) for i in range(3)])
    add_feature(root, "added", lambda e: [f"{e.key} {i}" for i in range(len(e))])
    with contextlib.suppress(ConflictError):
        late.close()
    seqrecord.reindex(root)
    drop_features(root, ["gone", "small"])
    add_feature(root, "gone", again, codec="raw")
    clean(root, older_than=0)
    written: dict[str, Any] = {}
    for key in ("a", "b", "late"):
        written[key] = ({}, [{"stays": _three(key, i)["stays"]} for i in range(3)])
        for i, frame in enumerate(written[key][1]):
            if key != "late":
                frame["added"] = f"{key} {i}"
            if i != 1:
                frame["gone"] = np.full(2, i, "<i2")
    return _features(root), written


def _images(root: Path) -> Made:
    """Images in their original files. The JPEG is plain grey: all decoders return the same."""
    y, x = np.mgrid[:6, :8]
    frame = {
        "rgb": np.stack([x * 30, y * 40, x + y], axis=-1).astype("|u1"),
        "rgba": np.stack([x * 30, y * 40, x + y, x * y], axis=-1).astype("|u1"),
        "grey": (x * y * 5).astype("|u1"),
        "grey16": (x * y * 1871).astype("<u2"),
        "jpeg": np.full((8, 8), 128, "|u1"),
    }
    chains, kept = {}, {}
    for name, array in frame.items():
        kind = "jpeg" if name == "jpeg" else "png"
        chains[name] = [{"id": "seqrecord.image", "format": kind}]
        file = io.BytesIO()
        Image.fromarray(array).save(file, kind)
        kept[name] = EncodedImage(file.getvalue())
    return _write(root, (_schema([frame], chains), {"e": ({}, [frame] * 2)}), stored=kept)


_GBR = VideoConfig("h264", "gbrp")


def _video(root: Path) -> Made:
    """Video without conversion to RGB, equal for all decoders: FFV1 encoded here, with gaps; and
    original H.264 in GBR, with reordered frames and some that are not shown.
    """
    shape = (16, 32, 3)
    ffv1 = VideoConfig("ffv1", "bgr0", gop=3).to_json()
    schema = Schema(
        [
            FeatureSpec("encoded", _U1, shape, (ffv1,)),
            FeatureSpec("kept", _U1, shape, (_GBR.to_json(),)),
            FeatureSpec("number", _U1, (1,)),
        ]
    )
    y, x = np.mgrid[:16, :32]

    def image(number: int) -> npt.NDArray[np.uint8]:
        squares = ((x + 2 * number) // 8 + (y + number) // 8) * 61
        return np.stack([squares, x + number, y * 3], axis=-1).astype(_U1)

    images = [image(number) for number in range(15)]
    first = _h264_in_gbr(images[:9])
    # Only the other frames need the first two.
    gops = [Gop(first.packets, tuple(max(-1, n - 2) for n in first.order))]
    gops.append(_h264_in_gbr(images[9:]))
    frames = []
    decoded = np.concatenate([decode_gop(_GBR, *shape[:2], gop) for gop in gops])
    for number, picture in enumerate(images[2:]):
        frame = {"encoded": picture, "kept": decoded[number], "number": np.array([number], _U1)}
        if number in (4, 5, 12):
            del frame["encoded"]
        frames.append(frame)
    writer = SeqRecordWriter(root, schema=schema, chunk_frames=6)
    with writer, writer.episode("e") as episode:
        for frame in frames:
            episode.append({n: array for n, array in frame.items() if n != "kept"})
        episode.append_video("kept", gops)
    return schema, {"e": ({}, frames)}


def _mixed(root: Path) -> Made:
    """A camera in H.264 in one episode and FFV1 in the other; pages have a configuration."""
    y, x = np.mgrid[:16, :32]
    images = [np.stack([x * n, y + n, x + y], axis=-1).astype("u1") for n in range(1, 6)]
    other = VideoConfig("ffv1", "bgr0")
    schema = Schema([FeatureSpec("image", _U1, (16, 32, 3), (_GBR.to_json(),))])
    gops = {"a": _h264_in_gbr(images), "b": replace(encode_gop(other, images[:3]), config=other)}
    with SeqRecordWriter(root, schema=schema) as writer:
        for key, gop in gops.items():
            with writer.episode(key) as episode:
                episode.append_video("image", [gop])
    decoded = {key: decode_gop(gop.config or _GBR, 16, 32, gop) for key, gop in gops.items()}
    return schema, {key: ({}, [{"image": a} for a in arrays]) for key, arrays in decoded.items()}


def _h264_in_gbr(images: Sequence[npt.NDArray[np.uint8]]) -> Gop:
    """One GOP in GBR with B-frames, by x264."""
    context = av.CodecContext.create("libx264rgb", "w")
    height, width = images[0].shape[:2]
    context.width, context.height, context.pix_fmt = width, height, "bgr24"
    context.time_base, context.thread_count = Fraction(1, 30), 1
    context.options = {"qp": "10", "x264-params": "bframes=3:b-adapt=0:scenecut=0"}
    packets = []
    for number, image in enumerate(images):
        picture = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="bgr24")
        picture.pts = number
        packets += context.encode(picture)
    packets += context.encode(None)
    return Gop(tuple(map(bytes, packets)), tuple(packet.pts for packet in packets))


def _referring(root: Path) -> Made:
    """Pages that refer to H.264 in GBR in an MP4. The file is in the dataset's folder, so that it
    is under version control; its indexed path never exists."""
    count = 11
    original = root / "original" / "a.mp4"
    original.parent.mkdir(parents=True)
    y, x = np.mgrid[:16, :32]
    images = [
        np.stack([((x + 2 * n) // 8 + y // 8) * 61, x + n, y * 3], axis=-1).astype("u1")
        for n in range(count)
    ]
    _mp4_in_gbr(original, images)
    schema = Schema(
        [
            FeatureSpec("image", _U1, (16, 32, 3), (_GBR.to_json(),)),
            FeatureSpec("number", _U1, (1,), group=1),
        ]
    )
    files = ExternalList((ExternalFile("/originals", "a.mp4", original.stat().st_size, "mtime 7"),))
    with (
        VideoFile(original) as video,
        _referring_to(root, schema, files, {str(original): (files.id, 0)}) as writer,
    ):
        writer.begin("e", ordinal=0, chunk_frames=6, metadata="{}")
        for n in range(count):
            writer.append(Block.of({"number": np.array([n], "u1")}))
        writer.append_video("image", read_references(video, read_table(video)))
        writer.end()
    with av.open(str(original)) as container:
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    frames = [{"image": a, "number": np.array([n], "u1")} for n, a in enumerate(decoded)]
    return schema, {"e": ({}, frames)}


def _mp4_in_gbr(path: Path, images: Sequence[npt.NDArray[np.uint8]]) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", rate=30)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = "bgr24"
        stream.options = {"qp": "10", "x264-params": "bframes=3:b-adapt=0:scenecut=0:keyint=4"}
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def _timed() -> Made:
    """Two timestamps that increase irregularly; one frame lacks `clock`."""
    f8, i8 = np.dtype("<f8"), np.dtype("<i8")
    schema = Schema(
        [
            FeatureSpec("time", f8, (), kind="timestamp", unit="s"),
            FeatureSpec("x", _U1, ()),
            FeatureSpec("clock", i8, (1,), kind="timestamp", unit="ms"),
        ]
    )
    frames = [
        {"time": np.array(time, f8), "x": np.array(i, "u1"), "clock": np.array([clock], i8)}
        for i, (time, clock) in enumerate([(0.5, 40), (1.5, 90), (2.0, 135), (3.0, 175)])
    ]
    incomplete = [frames[0], {n: array for n, array in frames[1].items() if n != "clock"}]
    return schema, {"a": ({}, frames), "b": ({}, frames[:1]), "c": ({}, incomplete)}


def _spanning() -> Made:
    poses = [
        {"pose": frame["pose"], **({"mask": frame["mask"]} if "mask" in frame else {})}
        for frame in _scene(11)
    ]
    lengths = {n: 4 * n - 1 for n in (3, 1, 2)}
    return _schema(poses, "raw"), {
        f"run/{n}": ({"number": n}, poses[:length]) for n, length in lengths.items()
    }


def main() -> None:
    """Write all missing datasets."""
    scene = _scene(3)
    for preset in ("raw", "fast", "balanced", "small"):
        made: Made = (_schema(scene, preset), {"env/P000": ({}, scene)})
        _make(preset, partial(_write, made=made, chunk_frames=2))
    dtypes, codecs = _dtypes(), _codecs()
    _make("dtypes", partial(_write, made=(_schema(dtypes, "raw"), {"e": ({}, dtypes)})))
    _make("codecs", partial(_write, made=(_schema(codecs, _CHAINS), {"e": ({}, codecs)})))
    _make("variable", partial(_write, made=_variable(), chunk_frames=3))
    _make("measured", partial(_write, made=_measured()))
    for make in (_images, _groups, _changed, _rewritten, _trimmed, _video, _mixed):
        _make(make.__name__[1:], make)
    _make("referring", _referring)
    _make("files", _files)
    _make("timed", partial(_write, made=_timed()))
    _make("spanning", partial(_write, made=_spanning(), chunk_frames=2, max_file_size=1200))


def _make(name: str, make: Callable[[Path], Made]) -> None:
    """Write a missing dataset and its expected content."""
    root = GOLDEN / name
    if not root.exists():
        text = json.dumps(expected(*make(root)), indent=1, ensure_ascii=name == "groups")
        root.with_suffix(".json").write_text(text + "\n", encoding="utf-8")


def hexdump() -> str:
    """A record file of one chunk: three frames of `x`, raw, and two of `y`, of variable length."""
    schema = Schema([FeatureSpec("x", _U1, (2,)), FeatureSpec("y", _U1, (None,))])
    x, y = PageCodec(schema["x"]), PageCodec(schema["y"])
    pages = [
        x.join([x.encode_frame(np.array(frame, _U1)) for frame in ([1, 2], [3, 4], [5, 6])]),
        y.join([y.encode_frame(np.array(frame, _U1)) for frame in ([7], [8, 9])]),
    ]
    chunk = np.zeros(1, chunk_row(2, 1))
    chunk["num_frames"], chunk["offset"] = 3, 64
    chunk["pages"]["length"] = [len(page) for page in pages]
    chunk["pages"]["crc32c"] = [crc32c(page) for page in pages]
    chunk["largest"] = 2
    part = EpisodePart("a/b", "f" * 32, 0, 3, 29.97, "{}")
    gaps = gap_rows(0, 1, np.array([True, False, True]))
    parts = [encode_header(bytes(range(16))), *pages, slice_table(schema, pages)]
    data = b"".join(item.ljust(64, b"\0") for item in parts)
    data += encode_footer(Footer(schema, bytes(range(16)).hex(), (part,), (chunk,), (gaps,)))
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
        lines.append(f"{at:08x}  {row.hex(' '):<48} |{text}|")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["hexdump"]:
        print(hexdump())  # noqa: T201
    else:
        main()
