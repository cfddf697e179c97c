"""HDF5 and Zarr arrays read in place: frames equal those of a conversion."""

from __future__ import annotations

import os
import re
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import CodecError, SeqRecordError, SourceError
from tests.formats.cases import index_source, upload
from tests.formats.format_cases.hdf5 import write_video_of_droid
from tests.formats.in_place_cases import assert_same, frames_of
from tests.kit.command_line import run
from tests.kit.video_file_data import pictures, write_video

Array = npt.NDArray[Any]

SHAPE, ROWS = (40, 50, 3), 11  # 6000 bytes per frame of uint8
DTYPES = ("|u1", "|b1", "<u2", ">u2", "<f2", ">f4", "<i8", ">f8")
FEW = ("|b1", ">f4")


pytestmark = pytest.mark.usefixtures("home")


@lru_cache
def values(dtype: str, shape: tuple[int, ...] = SHAPE) -> Array:
    made: Array = (np.random.default_rng(0).random((ROWS, *shape)) * 250).astype(dtype)
    return made


def hdf5(path: Path, write: Callable[[h5py.Group], object], **options: Any) -> Path:
    """Writes an ALOHA episode; `write` adds its cameras."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", **options) as file:
        file["action"] = values("<f4", (7,))
        file["observations/qpos"] = values("<f4", (7,))
        write(file.create_group("observations/images"))
    return path


def one_camera(path: Path, data: Array, of_file: Any = None, **options: Any) -> Path:
    """Writes an ALOHA episode with one camera, `x`."""
    return hdf5(path, lambda i: i.create_dataset("x", data=data, **options), **(of_file or {}))


def buffer(path: Path, zarr_format: int, arrays: dict[str, tuple[Array, dict[str, Any]]]) -> Path:
    """Writes a replay buffer of two episodes, with unwritten rows."""
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for name, (data, options) in arrays.items():
        made = group.create_array(
            f"data/{name}", shape=data.shape, dtype=data.dtype, **{"compressors": None, **options}
        )
        part = options.get("chunks", data.shape)[0] * 2
        made[:part], made[part * 2 :] = data[:part], data[part * 2 :]
    ends = np.array([ROWS // 2, ROWS])
    group.create_array("data/action", data=values("<f4", (2,)), chunks=(4, 2))
    group.create_array("meta/episode_ends", data=ends, chunks=(2,))
    return path


def check(root: Path | str, packed: Path, index: Path, **options: Any) -> dict[str, str]:
    """Compares an index with a conversion; returns the formats of features read in place."""
    source = open_source(root, **options)
    seqrecord.convert(source, packed, codecs="raw", workers=1, statistics=False)
    index_source(source, index, workers=1)
    with seqrecord.open(packed) as expected, seqrecord.open(index) as dataset:
        assert_same(frames_of(dataset), frames_of(expected))
        assert {e.key: e.metadata for e in dataset.episodes.values()} == {
            e.key: e.metadata for e in expected.episodes.values()
        }
        specs = [spec for spec in dataset.features.values() if not spec.is_video]
    assert seqrecord.verify(index, deep=True).ok
    codecs = {spec.name: spec.codec[0] for spec in specs if spec.codec}
    return {name: codec["format"] for name, codec in codecs.items() if "format" in codec}


def refused(root: Path, match: str = ".") -> SourceError:
    """Error from indexing an original."""
    index = root.with_name("refused")
    with pytest.raises(SourceError, match=match) as caught:
        index_source(open_source(root), index, workers=1)
    shutil.rmtree(index, ignore_errors=True)
    return caught.value


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("libver", "is_partial"),
    [("earliest", False), ("latest", True), slow("earliest", True), slow("latest", False)],
)
def test_hdf5(tmp_path: Path, libver: str, is_partial: bool, thorough: bool) -> None:
    """Every dtype: contiguous and in chunks of 1, 2, 3 and 20 rows, resizable or not."""
    dtypes = DTYPES if thorough else FEW
    layouts: dict[str, dict[str, Any]] = {"flat": {}, "fixed": {"chunks": (2, *SHAPE)}}
    for rows in (1, 3, 20):
        layouts[f"of_{rows}"] = {"chunks": (rows, *SHAPE), "maxshape": (None, *SHAPE)}

    def write(images: h5py.Group) -> None:
        for dtype, (name, options) in product(dtypes, layouts.items()):
            name = f"{name}_{dtype[1:]}{'b' if dtype[0] == '>' else ''}"
            item = images.create_dataset(name, (ROWS, *SHAPE), dtype, fillvalue=1, **options)
            data = values(dtype)
            if not is_partial:
                item[...] = data
            elif "flat" not in name:
                item[4:6], item[9] = data[4:6], data[9]
        images["small"] = values("<f4", (30,))

    hdf5(tmp_path / "set" / "a.hdf5", write, libver=libver)
    found = check(tmp_path / "set", tmp_path / "packed", tmp_path / "index")
    assert len(found) == len(dtypes) * 5
    for name, codec in found.items():
        assert codec == ("raw_big_endian" if name.endswith("b") else "raw"), name
    size, copied = (
        sum(p.stat().st_size for p in path.rglob("*.*"))
        for path in (tmp_path / "set", tmp_path / "index")
    )
    assert is_partial or copied < size / 20


def test_loads_reuse_memory(tmp_path: Path) -> None:
    """Raw chunks of all cameras: the first use of new memory is expensive."""
    shape, chunk, cameras = (120, 300, 3), ROWS * 120 * 300 * 3, ("side", "top")
    for name in "abcdefgh":  # more than the memory limit
        hdf5(
            tmp_path / "set" / f"{name}.hdf5",
            lambda images: [images.create_dataset(c, data=values("|u1", shape)) for c in cameras],
        )
    index_source(open_source(tmp_path / "set"), tmp_path / "index", workers=1)
    pipe = seqrecord.SeqRecordPipe(
        tmp_path / "index",
        clip_len=1,
        batch_size=1,  # smaller than a chunk: the loop sometimes keeps a few batches
        features=[f"observations.images.{camera}" for camera in cameras],
        memory_limit=14 * chunk,
        engine=seqrecord.EngineOptions(num_threads=1),
    )
    for _ in range(2):  # imports of the second epoch take memory, too
        list(pipe)
    tracemalloc.start()
    try:
        for _ in pipe:
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert pipe.stats()["bytes_read"] >= 16 * chunk
    assert peak < chunk


FORMS: list[tuple[int, dict[str, Any]]] = [
    (2, {"chunks": (1, *SHAPE)}),
    (2, {"chunks": (3, *SHAPE), "fill_value": 1}),
    (2, {"chunks": (1, *SHAPE), "chunk_key_encoding": {"name": "v2", "separator": "/"}}),
    (3, {"chunks": (1, *SHAPE), "fill_value": 1}),
    (3, {"chunks": (1, *SHAPE), "chunk_key_encoding": {"name": "default", "separator": "."}}),
    (3, {"chunks": (4, *SHAPE)}),
    (3, {"chunks": (1, *SHAPE), "shards": (4, *SHAPE)}),
    (3, {"chunks": (2, *SHAPE), "shards": (6, *SHAPE), "fill_value": 1}),
]


@pytest.mark.parametrize("form", [slow(0), 1, 2, slow(3), 4, 5, slow(6), 7])
def test_zarr(tmp_path: Path, form: int, thorough: bool) -> None:
    zarr_format, options = FORMS[form]
    arrays = {}
    for dtype in DTYPES if thorough else FEW:
        more: dict[str, Any] = {}
        is_big = dtype[0] == ">"
        if is_big and zarr_format == 3 and "shards" not in options:
            more = {"serializer": pytest.importorskip("zarr").codecs.BytesCodec(endian="big")}
        arrays[f"{dtype[1:]}_{'b' if is_big else 'l'}"] = values(dtype), {**options, **more}
    buffer(tmp_path / "set.zarr", zarr_format, arrays)
    found = check(tmp_path / "set.zarr", tmp_path / "packed", tmp_path / "index")
    assert found.keys() == arrays.keys()
    for name, codec in found.items() if "shards" not in options else ():
        assert codec == ("raw_big_endian" if name.endswith("b") else "raw"), name


@pytest.mark.parametrize("form", [1, slow(3), slow(4), 7])
def test_zarr_on_a_url(tmp_path: Path, memory_url: str, form: int) -> None:
    zarr_format, options = FORMS[form]
    buffer(tmp_path / "set.zarr", zarr_format, {"img": (values("u1"), options)})
    url = upload(tmp_path, memory_url)
    assert check(url, tmp_path / "packed", tmp_path / "index") == {"img": "raw"}


def test_a_droid_video_with_more_frames_than_rows(tmp_path: Path) -> None:
    [path] = write_video_of_droid(tmp_path / "set", "Fri", 1, 4)
    write_video(path, pictures(5))
    refused(tmp_path / "set", "another number of frames")


# --- arrays that cannot be read in place ------------------------------------------------------

LARGE = (80, 300, 3)  # 72,000 bytes a frame
NOT_IN_HDF5: list[tuple[dict[str, Any], dict[str, Any], str]] = [  # file, array options; reason
    ({"userblock_size": 512}, {}, "layout or number format"),
    ({}, {"compression": "gzip"}, "compressed"),
    ({}, {"fletcher32": True}, "or filtered"),
    ({}, {"chunks": (1, 40, 300, 3)}, "parts of frames"),
    ({}, {"chunks": (1, 80, 300, 4), "maxshape": (None,) * 4}, "parts of frames"),
]


def test_hdf5_arrays_without_plain_frames_are_refused(tmp_path: Path) -> None:
    for number, (of_file, options, reason) in enumerate(NOT_IN_HDF5):
        path = tmp_path / f"{number}" / "a.hdf5"
        one_camera(path, values("u1", LARGE), of_file, **options)
        done = run("index", path, "-o", tmp_path / "index", code=1)
        for text in (reason, "`seqrecord write --src`", "observations.images.x", str(path)):
            assert text in re.sub(r"\s+", " ", done.output)
        assert not (tmp_path / "index").exists()
        if not of_file:  # small frames are copied in any layout
            shape = {"chunks": (1, 20, 50, 3)} if "chunks" in options else options
            one_camera(path, values("u1"), **shape)
            refused(path, "in place")


NOT_IN_ZARR: list[tuple[int, dict[str, Any], str]] = [
    (3, {"compressors": "auto"}, "compressed"),  # by zstd
    (2, {"compressors": "auto"}, "compressed"),  # by Blosc
    (3, {"chunks": (1, 40, 300, 3)}, "parts of frames"),
    (2, {"order": "F"}, "layout or number format"),
    (3, {"shards": (2, *LARGE), "compressors": "auto"}, "compressed"),
]


def test_zarr_arrays_without_plain_frames_are_refused(tmp_path: Path) -> None:
    for number, (zarr_format, options, reason) in enumerate(NOT_IN_ZARR):
        arrays = {"img": (values("u1", LARGE), {"chunks": (1, *LARGE), **options})}
        error = refused(buffer(tmp_path / f"{number}.zarr", zarr_format, arrays), reason)
        assert "`seqrecord write --src`" in error.message
        assert error.feature == "img"


@pytest.mark.parametrize("kind", ["hdf5", "zarr"])
def test_a_compressed_array_is_left_out_beside_others(tmp_path: Path, kind: str) -> None:
    data, root = values("u1", LARGE), tmp_path / "set.zarr"
    if kind == "zarr":
        chunks: dict[str, Any] = {"chunks": (1, *LARGE)}
        arrays = {"x": (data, {**chunks, "compressors": "auto"}), "y": (data, chunks)}
        buffer(root, 3, arrays)
    else:
        options: dict[str, Any] = {"x": {"compression": "gzip"}, "y": {}}
        root = hdf5(
            tmp_path / "set/a.hdf5",
            lambda images: [images.create_dataset(n, data=data, **o) for n, o in options.items()],
        ).parent
    source = open_source(root)
    [name] = [name for name in source.schema() if name.endswith("x")]
    report = index_source(source, tmp_path / "index", workers=2)
    assert not report.bad
    with seqrecord.open(tmp_path / "index") as dataset:
        assert name not in dataset.features
        assert f"{name[:-1]}y" in dataset.features
        reasons = {row.pattern: row.reason for row in dataset.inventories[0].left_out_data}
        assert "its chunks are compressed" in reasons[f"feature {name}"]
    with pytest.raises(SourceError, match="its chunks are compressed"):
        index_source(open_source(root, features=[name]), tmp_path / "other", workers=1)


def test_files_stored_differently_from_the_first_are_refused(tmp_path: Path) -> None:
    root, small = tmp_path / "set", values("<f4", (40, 50))
    for name, dtype in (("a", "<f4"), ("b", ">f4")):
        one_camera(root / f"{name}.hdf5", values(dtype, LARGE))
    refused(root, "in place")
    for name, options in (("a", {}), ("b", {"compression": "gzip"})):
        one_camera(root / f"{name}.hdf5", small, **options)
    error = refused(root, "differently from the first one")
    assert (error.episode, error.feature) == ("b", "observations.images.x")


# --- damaged and inconsistent files -----------------------------------------------------------


def test_zarr_chunks_of_a_wrong_size_are_refused(tmp_path: Path, thorough: bool) -> None:
    for form in (0, 5, 6) if thorough else (0, 6):
        zarr_format, options = FORMS[form]
        root = buffer(tmp_path / f"{form}.zarr", zarr_format, {"img": (values("u1"), options)})
        path = root / "data/img" / ("0.0.0.0" if zarr_format == 2 else "c/0/0/0/0")
        size = path.stat().st_size
        for wrong in (size - 1, size + 1):
            os.truncate(path, wrong)
            assert refused(root).file == str(path)


def test_wrong_offsets_in_a_shard_index_are_refused(tmp_path: Path, thorough: bool) -> None:
    crc32c = pytest.importorskip("google_crc32c")
    root = buffer(tmp_path / "a.zarr", 3, {"img": (values("u1"), FORMS[6][1])})
    path = root / "data/img/c/0/0/0/0"
    data = bytearray(path.read_bytes())
    places = ((2**64 - 1, 6000), (10**6, 6000), (0, 5), (2**63, 6000), (0, 2**62))
    for place in places if thorough else places[:3]:
        struct.pack_into("<2Q", data, len(data) - 68 + 16, *place)
        data[-4:] = crc32c.value(bytes(data[-68:-4])).to_bytes(4, "little")
        path.write_bytes(data)
        assert refused(root).file == str(path)


@pytest.mark.parametrize("form", [0, slow(1)])
def test_an_array_that_declares_too_many_rows_is_read(tmp_path: Path, form: int) -> None:
    root = buffer(tmp_path / "a.zarr", 2, {"img": (values("u1"), FORMS[form][1])})
    path = root / "data/img/.zarray"
    text, count = re.subn(r'("shape": *\[\s*)11,', rf"\g<1>{2**60},", path.read_text())
    assert count == 1
    path.write_text(text)
    assert check(tmp_path, tmp_path / "packed", tmp_path / "index") == {"img": "raw"}


def _patched(path: Path, old: int, new: int, suffix: bytes = b"") -> None:
    """Replaces the address `old`, followed by the bytes `suffix`, with `new`."""
    data, found = path.read_bytes(), struct.pack("<Q", old) + suffix
    assert data.count(found) == 1
    path.write_bytes(data.replace(found, struct.pack("<Q", new) + suffix))


def test_hdf5_chunks_beyond_the_end_are_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "a.hdf5", values("u1")
    places: list[Any] = [2**62, "end", 2**63 + 5]
    for chunks, new in product((None, (2, *SHAPE)), places):
        one_camera(path, data, chunks=chunks)
        with h5py.File(path) as file:
            item = file["observations/images/x"].id
            old = item.get_offset() if chunks is None else item.get_chunk_info(3).byte_offset
        size = struct.pack("<Q", data.nbytes) if chunks is None else b""
        _patched(path, old, path.stat().st_size - 5000 if new == "end" else new, size)
        assert refused(path).file == str(path)


def test_overlapping_hdf5_chunks_are_read(tmp_path: Path) -> None:
    path = one_camera(tmp_path / "set" / "a.hdf5", values("u1"), chunks=(2, *SHAPE))
    with h5py.File(path) as file:
        item = file["observations/images/x"].id
        second, third, last = (item.get_chunk_info(i).byte_offset for i in (1, 2, 5))
    _patched(path, third, second + 100)
    _patched(path, last, second)
    found = check(tmp_path / "set", tmp_path / "packed", tmp_path / "index")
    assert found == {"observations.images.x": "raw"}


def test_invalid_bool_bytes_are_an_error(tmp_path: Path) -> None:
    path = one_camera(tmp_path / "a.hdf5", values("?") | True)
    with h5py.File(path) as file:
        at = file["observations/images/x"].id.get_offset()
    with path.open("r+b") as stream:
        stream.seek(at + 6000)
        stream.write(b"\2")
    index_source(open_source(path), tmp_path / "index", workers=1)
    with seqrecord.open(tmp_path / "index") as dataset, pytest.raises(CodecError) as info:
        dataset.episodes["a"][:]
    assert (info.value.file, info.value.offset) == (str(path), at + 6000)


def test_random_damage(tmp_path: Path, thorough: bool) -> None:
    """Frames equal converted ones, or keep old values if HDF5 lists a chunk that it no
    longer finds, or an error is raised."""
    rng, name = np.random.default_rng(0), "observations.images.x"
    path = one_camera(tmp_path / "a.hdf5", values("u1"), chunks=(2, *SHAPE))
    good = path.read_bytes()
    with h5py.File(path) as file:
        first = file["observations/images/x"].id.get_chunk_info(0).byte_offset
    before = values("u1")
    same, count = 0, 50 if thorough else 8
    for number in range(count):
        data = bytearray(good)
        for at in rng.integers(0, first, 3):
            data[at] = rng.integers(256)
        path.write_bytes(data)
        places = [tmp_path / f"{number} {kind}" for kind in ("converted", "indexed")]
        try:
            source = open_source(path)
            seqrecord.convert(source, places[0], codecs="raw", workers=1, statistics=False)
            index_source(source, places[1], workers=1)
            with seqrecord.open(places[0]) as one, seqrecord.open(places[1]) as other:
                converted, found = frames_of(one), frames_of(other)
        except SeqRecordError:
            continue
        same += 1
        for key, frames in converted.items():
            for at, now in enumerate(frames):
                is_old = at < ROWS and np.array_equal(found[key][at][name], before[at])
                if is_old and not np.any(now[name]):
                    frames[at] = {**now, name: before[at]}
        assert_same(found, converted)
    assert 0 < same < count
