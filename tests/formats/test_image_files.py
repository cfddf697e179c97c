"""Image files other than PNG and JPEG, float rasters, npz: values as stored, or an error."""

from __future__ import annotations

import io
import itertools
import struct
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import OpenEXR
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import seqrecord
from seqrecord import open_source
from seqrecord.errors import MissingPackageError, SourceError
from seqrecord.formats.sources.common.array_files import (
    array_header,
    decode_array,
    read_array,
)
from seqrecord.sources import FolderSource
from tests.formats.cases import index_source
from tests.formats.format_cases.sequences import write_euroc, write_kitti, write_tum
from tests.formats.format_cases.webdataset import write_tar
from tests.formats.image_data import (
    Read,
    colour_files,
    exr,
    exr_files,
    netpbm_files,
    npy,
    png_files,
    raster_files,
    saved,
    tiff,
    tiff_files,
)
from tests.golden.make_rasters import FOLDER
from tests.golden.make_rasters import values as rasters
from tests.kit.datasets import noise
from tests.kit.image_layouts import pixels_of, png_layouts, tiff_layouts
from tests.kit.tiff_files import DEFLATE, LZW, RAW, tiff_file

Array = npt.NDArray[Any]


FORMATS: dict[str, tuple[Callable[[Path], Read], str | None]] = {
    "png": (png_files, None),
    "png in jpegxl": (png_files, "jpegxl"),  # if it fits
    "netpbm": (lambda _: netpbm_files(), None),
    "tiff": (lambda _: tiff_files(), None),
    "webp, bmp": (colour_files, None),
    "rasters": (raster_files, None),
    "exr": (exr_files, None),
}


@pytest.mark.parametrize("name", FORMATS)
def test_datasets_have_the_values_of_the_files(tmp_path: Path, name: str) -> None:
    """Each file is a feature of two frames."""
    make, codec = FORMATS[name]
    files = [*make(tmp_path)]
    if codec is not None:
        files = [each for each in files if each[2].dtype != bool and each[2].shape[2:] != (2,)]
        files = [each for each in files if each[2].dtype == "u1" or each[2].shape[2:] != (4,)]
    for number, (ending, data, _) in enumerate(files):
        folder = tmp_path / "src" / "run" / f"f{number}"
        folder.mkdir(parents=True)
        for index in range(2):
            (folder / f"{index}{ending}").write_bytes(data)
    source = open_source(tmp_path / "src")
    names = [f"f{number}" for number in range(len(files))]
    codecs = None if codec is None else dict.fromkeys(names, codec)
    report = seqrecord.convert(source, tmp_path / "records", workers=1, strict=True, codecs=codecs)
    assert report.inventory.left_out_data == ()
    with seqrecord.open(tmp_path / "records") as dataset:
        frame = dataset.episodes["run"][1]
        for number, (ending, data, want) in enumerate(files):
            got, shown = np.asarray(frame[f"f{number}"]), f"{ending}: {data[:20]!r}"
            np.testing.assert_array_equal(got, want, shown, strict=True)


def written(tmp_path: Path, ending: str) -> bytes:
    return saved(tmp_path / f"whole{ending}", noise(40, 40, 3, dtype="u1"))


@given(st.data())
def test_damaged_openexr_is_an_error_or_an_image(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("exr") / "run" / "depth"
    folder.mkdir(parents=True)
    planes = {name: np.arange(20, dtype="<f4").reshape(4, 5) for name in "RGB"}
    whole = bytearray(exr(folder / "0.exr", planes))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
        whole[place] ^= data.draw(st.integers(1, 255))
    (folder / "0.exr").write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    source = FolderSource(folder.parents[1])
    with suppress(SourceError):
        [frame] = source.frames(source.episodes()[0])
        assert np.asarray(frame["depth"]).dtype.kind in "fu"


def write_tree(tree: Path) -> None:
    """Three frames of flow, depth and normals."""
    for name in ("flow", "depth", "normal"):
        (tree / name).mkdir(parents=True)
    for number in range(3):
        (tree / "flow" / f"{number}.flo").write_bytes((FOLDER / "flow.flo").read_bytes())
        (tree / "depth" / f"{number}.pfm").write_bytes((FOLDER / "depth.pfm").read_bytes())
        planes = {name: (rasters()[..., i] + number).astype("<f2") for i, name in enumerate("RGB")}
        exr(tree / "normal" / f"{number}.exr", planes)


def test_a_tree_of_rasters_has_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that changes is an error, and so is OpenEXR without its package."""
    tree = tmp_path / "scene"
    write_tree(tree)
    source = FolderSource(tmp_path)
    assert [(str(s), s.kind, s.unit) for s in source.schema().values()] == [
        ("depth: float32 [5, 7]", "depth", None),
        ("flow: float32 [5, 7, 2]", "flow", "px"),
        ("frame_number: int64 []", "frame_number", None),
        ("normal: float16 [5, 7, 3]", "normals", None),
    ]
    (tree / "depth" / "1.pfm").write_bytes((FOLDER / "normals.pfm").read_bytes())
    with pytest.raises(SourceError, match="wrong shape") as caught:
        list(source.frames(source.episodes()[0]))
    assert (caught.value.episode, caught.value.frame, caught.value.feature) == ("scene", 1, "depth")
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with pytest.raises(MissingPackageError, match="pip install OpenEXR"):
        open_source(tmp_path).schema()


# --- broken files ------------------------------------------------------------------------------


def npz(*arrays: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, *arrays, **options)
    return stream.getvalue()


def bomb() -> bytes:
    """64 MiB of zeros after the header of an array of 14 kB."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        header = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (50, 70)}")
        file.writestr("arr_0.npy", header + bytes(64 << 20))
    return stream.getvalue()


def of_parts(path: Path) -> bytes:
    plane = {"Z": np.zeros((4, 6), "<f4")}
    parts = [OpenEXR.Part({"type": OpenEXR.scanlineimage}, plane, name) for name in "ab"]
    with OpenEXR.File(parts) as file:
        file.write(str(path))
    return path.read_bytes()


def of_planes(*names: str) -> Callable[[Path], bytes]:
    planes = {name: np.zeros((4, 6), "<u4" if name == "id" else "<f4") for name in names}
    return lambda folder: exr(folder / "a.exr", planes)


FLOW, DEPTH = ((FOLDER / name).read_bytes() for name in ("flow.flo", "depth.pfm"))
LISTED = b"\x76\x2f\x31\x01\x02\0\0\0"
NPZ = npz(noise(50, 70, dtype="f4"))
WRITTEN = (".ppm", ".tiff", ".webp", ".bmp", ".png")
GOOD: dict[str, Callable[[Path], bytes] | bytes] = {
    **{ending: partial(written, ending=ending) for ending in WRITTEN},
    ".pgm": b"P5\n2 2\n7\n\0\0\0\0",
    ".tif": tiff(noise(4, 4, dtype="u1"), "<"),
    ".flo": FLOW,
    ".pfm": DEPTH,
    ".exr": of_planes("Z"),
    ".npz": NPZ,
}
OTHER = "format differs from the file name's ending.*got: png"
SIZE = "differs from its header"
REFUSED: list[tuple[str, Callable[[Path], bytes] | bytes, str]] = [
    *((ending, GOOD[".png"], OTHER) for ending in (".ppm", ".tiff", ".webp", ".bmp")),
    (".pgm", b"P5\n2 2\n0\n\0\0\0\0", ""),
    (".pgm", b"P5\n2 2\n65536\n" + bytes(8), ""),
    (".pgm", b"P5\n2 2\n7\n\0\0\0\x08", ""),  # above the maximum
    (".pgm", b"P2\n2 2\n7\n0 0 0 8\n", ""),
    (".pgm", b"P2\n2 2\n7\n0 0 0 x\n", ""),
    (".pgm", b"P2\n2 2\n7\n0 0 0\n", ""),
    (".pgm", b"P5\n2 2\n7\n\0\0\0\0\0", ""),
    (".pgm", b"P5\n0 2\n7\n", ""),
    (".pgm", b"P5\n99999999 99999999\n7\n\0", ""),
    (".pgm", b"P5" + b" " * 5000 + b"x", ""),
    (".ppm", b"P7\nWIDTH 2\n", ""),
    (".tif", tiff(noise(4, 4, dtype="u1"), "<", t258=4, t256=8), ""),  # 4 bits
    (".tif", tiff(noise(4, 4, dtype="f2"), "<"), ""),
    (".flo", b"", "not a .flo file|the file is empty"),
    (".flo", b"PIEX" + FLOW[4:], "not a .flo file"),
    (".flo", FLOW[:-1], f"{SIZE}; .*got: 291 bytes"),
    (".flo", FLOW + b"\0", SIZE),
    (".flo", b"PIEH" + struct.pack("<ii", -7, 5) + FLOW[12:], "invalid image size"),
    (".flo", b"PIEH" + struct.pack("<ii", 1 << 30, 1 << 30), "invalid image size"),
    (".pfm", b"", "not a PFM file|the file is empty"),
    (".pfm", b"P6" + DEPTH[2:], "not a PFM file"),
    (".pfm", b"Pf 7 5 0 " + DEPTH[10:], "not a PFM file"),
    (".pfm", b"Pf 7 5 1.2.3 " + DEPTH[10:], "not a PFM file"),
    (".pfm", b"Pf 0 5 -1 ", "invalid image size"),
    (".pfm", DEPTH[:-4], SIZE),
    (".exr", b"", "cannot decode|the file is empty"),
    (".exr", LISTED, "cannot decode"),
    (".exr", LISTED + b"channels\0chlist\0\xff\xff\xff\xff", "cannot decode"),
    (".exr", of_planes("Z", "id"), r"not one image; .*got: Z \(float32\), id \(uint32\)"),
    (".exr", of_planes("X", "Y"), r"not one image; .*got: X \(float32\), Y \(float32\)"),
    (".exr", lambda folder: of_parts(folder / "a.exr"), "unsupported OpenEXR file"),
    (".npz", NPZ[: len(NPZ) // 2], ""),
    (".npz", b"PK" + bytes(200), ""),
    (".npz", b"", ""),
    (".npz", npz(), ""),
    (".npz", lambda _: bomb(), ""),
    (".npz", npz(np.array([{}], object)), "pickled"),
]


def bytes_of(data: Callable[[Path], bytes] | bytes, tmp_path: Path) -> bytes:
    return data if isinstance(data, bytes) else data(tmp_path)


@pytest.mark.parametrize("is_first", [False, True])
def test_refused(tmp_path: Path, is_first: bool) -> None:
    """The first file of a feature sets its format; later files are compared with it."""
    for number, (ending, data, match) in enumerate(REFUSED):
        folder = tmp_path / f"{number}" / "run" / "depth"
        folder.mkdir(parents=True)
        if not is_first:
            (folder / f"0{ending}").write_bytes(bytes_of(GOOD[ending], tmp_path))
        bad = folder / f"{int(not is_first)}{ending}"
        bad.write_bytes(bytes_of(data, tmp_path))
        source = FolderSource(tmp_path / f"{number}")
        with pytest.raises(SourceError, match=match or ".") as caught:
            list(source.frames(source.episodes()[0]))
        assert caught.value.file == str(bad)
        if not is_first:
            assert (caught.value.episode, caught.value.frame) == ("run", 1)


def test_a_file_that_is_cut_or_gone(tmp_path: Path) -> None:
    for ending in (".ppm", ".tiff", ".webp", ".bmp", ".flo", ".pfm", ".exr"):
        folder, data = tmp_path / ending / "run" / "rgb", bytes_of(GOOD[ending], tmp_path)
        folder.mkdir(parents=True)
        for number in range(2):
            (folder / f"{number}{ending}").write_bytes(data)
        source, bad = FolderSource(tmp_path / ending), folder / f"1{ending}"
        assert len(list(source.frames(source.episodes()[0]))) == 2
        for remaining, match in ((data[: len(data) * 2 // 3], "."), (None, "cannot read")):
            bad.write_bytes(data)
            frames = source.frames(source.episodes()[0])
            next(frames)
            bad.unlink() if remaining is None else bad.write_bytes(remaining)
            with pytest.raises(SourceError, match=match) as caught:
                next(frames)
            error = caught.value
            assert (error.file, error.feature, error.frame) == (str(bad), "rgb", 1)


def test_only_png_and_jpeg_stay_encoded(tmp_path: Path) -> None:
    """A feature of PNG and other images is decoded, in any order of files."""
    src = tmp_path / "src"
    kinds = {"rgb": (".webp", ".webp"), "mixed": (".png", ".bmp"), "photo": (".png", ".png")}
    for name, endings in kinds.items():
        (src / "run" / name).mkdir(parents=True)
        for number, ending in enumerate(endings):
            (src / "run" / name / f"{number}{ending}").write_bytes(written(tmp_path, ending))
    source = open_source(src, keep_encoded=True)
    assert [source.schema()[name].codec for name in ("mixed", "rgb")] == [(), ()]
    shapes = [np.asarray(frame["mixed"]).shape for frame in source.frames(source.episodes()[0])]
    assert shapes == [(40, 40, 3)] * 2
    seqrecord.convert(open_source(src), tmp_path / "index", workers=1, in_place=True)
    with seqrecord.open(tmp_path / "index") as dataset:  # in place, except for two features
        assert dataset.episodes["run"][1]["rgb"].shape == (40, 40, 3)


def test_sequences_read_other_image_formats(tmp_path: Path) -> None:
    """TUM and EuRoC list their files, KITTI has folders."""
    wanted = {"tum": write_tum(tmp_path / "tum"), "euroc": write_euroc(tmp_path / "euroc")}
    wanted["kitti"] = write_kitti(tmp_path / "kitti")
    for path in sorted(tmp_path.rglob("*.png")):
        with Image.open(path) as image:
            image.load()
        image.save(path.with_suffix(".tif" if path.parts[-2] == "depth" else ".bmp"))
        path.unlink()
    for path in (*tmp_path.rglob("rgb.txt"), *tmp_path.rglob("data.csv")):
        path.write_text(path.read_text().replace(".png", ".bmp"))
    depth = tmp_path / "tum" / "depth.txt"
    depth.write_text(depth.read_text().replace(".png", ".tif"))
    for name, frames in wanted.items():
        source = open_source(tmp_path / name)
        read = list(source.frames(source.episodes()[0]))
        for got, want in zip(read, frames, strict=True):
            assert {*got} >= {*want}
            for feature in want:
                np.testing.assert_array_equal(got[feature], want[feature])


def test_tar_files_contain_other_image_formats(tmp_path: Path) -> None:
    depth = noise(3, 5, 7, dtype="f4")
    files: dict[str, bytes] = {}
    for number in range(3):
        files[f"{number:04d}.depth.tiff"] = tiff(depth[number], "<")
        files[f"{number:04d}.rgb.webp"] = written(tmp_path, ".webp")
    write_tar(tmp_path / "tars" / "a.tar", files)
    source = open_source(tmp_path / "tars", keep_encoded=True)
    for number, frame in enumerate(source.frames(source.episodes()[0])):
        np.testing.assert_array_equal(np.asarray(frame["depth"]), depth[number], strict=True)
        assert np.asarray(frame["rgb"]).shape == (40, 40, 3)


# --- npz ---------------------------------------------------------------------------------------


def test_npz(tmp_path: Path) -> None:
    """Files per frame and per episode; a file in the root does not make it an episode."""
    depth, points, state = (
        noise(6, 5, 7, dtype="f4"),
        noise(6, 9, 3, dtype="f8"),
        noise(6, dtype="i8"),
    )
    run = tmp_path / "run"
    for name in ("depth", "lidar"):
        (run / name).mkdir(parents=True)
    for number in range(6):
        np.savez_compressed(run / "depth" / f"{number:06d}.npz", depth[number])
        more = {"points": points[number], "intensity": points[number, :, 0]}
        np.savez(run / "lidar" / f"{number:06d}.npz", **more)
    np.savez(run / "data.npz", actions=depth[:, 0, :2], state=state, K=np.eye(3))
    np.savez(run / "reward.npz", np.arange(6.0))
    np.savez(tmp_path / "mean.npz", np.zeros(3))
    source = FolderSource(tmp_path)
    assert [(info.key, info.num_frames) for info in source.episodes()] == [("run", 6)]
    wanted = {
        "actions": depth[:, 0, :2],
        "depth": depth,
        "frame_number": np.arange(6),
        "intensity": points[..., 0],
        "points": points,
        "reward": np.arange(6.0),
        "state": state,
    }
    assert {n: (s.dtype, s.shape) for n, s in source.schema().items()} == {
        name: (array.dtype, array.shape[1:]) for name, array in wanted.items()
    }
    for index, frame in enumerate(source.frames(source.episodes()[0])):
        for name, array in wanted.items():
            np.testing.assert_array_equal(frame[name], array[index])
    seqrecord.convert(source, tmp_path.parent / f"{tmp_path.name}-records", workers=1)
    alone = run / "alone"  # an episode
    alone.mkdir()
    np.savez(alone / "data.npz", state=state, limits=np.zeros((2, 3)))
    [info] = FolderSource(alone).episodes()
    assert [frame["state"] for frame in FolderSource(alone).frames(info)] == state.tolist()


# Every layout of TIFF, PNG and OpenEXR


def is_readable(name: str, pixels: Array) -> bool:
    """Whether Pillow reads the headers of TIFFs with this layout."""
    channels, dtype = (*pixels.shape, 1)[2], pixels.dtype
    if "extra=1" in name:  # premultiplied
        return bool(channels == 4)
    if channels == 1:
        return name.startswith("<u4") or dtype.str[1:] in {"u1", "i1", "u2", "i2", "i4", "f4"}
    return bool(dtype == "u1" or (dtype == "u2" and channels > 2))


def values_of(path: Path, data: bytes, **options: Any) -> Array:
    """The values of a file, as a source yields them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    source = seqrecord.open_source(path.parents[2], **options)
    [frame] = source.frames(source.episodes()[0])
    return np.asarray(frame[path.parent.name])


@pytest.mark.parametrize("step", [151, pytest.param(1, marks=pytest.mark.slow)])
def test_tiffs_have_the_stored_values_or_are_refused(tmp_path: Path, step: int) -> None:
    path = tmp_path / "src/run/image/0.tif"
    results = Counter[bool]()
    for name, data, want in itertools.islice(tiff_layouts(), 0, None, step):
        results[is_readable(name, want)] += 1
        if is_readable(name, want):
            np.testing.assert_array_equal(values_of(path, data), want, name, strict=True)
            continue
        with pytest.raises(SourceError) as caught:
            values_of(path, data)
        assert caught.value.file == str(path), name
        assert caught.value.expected, name
    assert min(results[True], results[False]) > 300 // step


@pytest.mark.parametrize("compression", [RAW, LZW, DEFLATE])
def test_a_fourth_plane_without_a_tag_changes_no_colours(tmp_path: Path, compression: int) -> None:
    pixels = pixels_of("u1", 5, 7, 4)
    data = tiff_file(pixels, compression=compression, has_planes=True, t338=[])
    np.testing.assert_array_equal(values_of(tmp_path / "src/run/image/0.tif", data), pixels)


def test_pngs_have_the_stored_values(tmp_path: Path) -> None:
    path = tmp_path / "src/run/image/0.png"
    for name, data, want in png_layouts():
        np.testing.assert_array_equal(values_of(path, data), want, name, strict=True)


@pytest.mark.parametrize("orientation", range(2, 9))
def test_turned_tiffs_of_both_byte_orders_are_equal(tmp_path: Path, orientation: int) -> None:
    """One is decoded by Pillow, the other one by imagecodecs."""
    pixels = pixels_of("f4", 5, 7)
    for exif in ("apply", "ignore"):
        little, big = (
            values_of(
                tmp_path / f"{order == '<'}/run/image/0.tif",
                tiff_file(pixels, order, compression=DEFLATE, t274=[orientation]),
                exif=exif,
            )
            for order in "<>"
        )
        assert np.array_equal(little, big)
        assert np.array_equal(little, pixels) == (exif == "ignore")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    path, pixels = tmp_path / "src/run/depth/0.tif", pixels_of("f4", 5, 7)
    assert np.array_equal(values_of(path, tiff_file(pixels, "<", compression=LZW)), pixels)
    assert np.array_equal(values_of(path, tiff_file(pixels, ">")), pixels)
    with pytest.raises(MissingPackageError, match="pip install imagecodecs"):
        values_of(path, tiff_file(pixels, ">", compression=LZW))


SHIFTS = [(0, 0), (2, 3), (4, 6), (-2, 1), (1, -3), (9, 2), (40, 0)]


@pytest.mark.parametrize("origin", [(0, 0), (-5, 7)])
def test_openexr_pixels_are_at_their_place(tmp_path: Path, origin: tuple[int, int]) -> None:
    """The picture is the display window, wherever the data window is."""
    sides: list[tuple[int, int]] = [(8, 10), (12, 16), (20, 30)]
    for (top, left), (height, width) in itertools.product(SHIFTS, sides):
        whole = np.zeros((12, 16), "f4")
        stored = pixels_of("f4", height, width)
        for y, x in itertools.product(range(height), range(width)):
            if 0 <= y + top < 12 and 0 <= x + left < 16:
                whole[y + top, x + left] = stored[y, x]
        windows = {
            name: tuple(np.array(corner, "i4") + np.array(origin[::-1], "i4") for corner in box)
            for name, box in (
                ("displayWindow", ((0, 0), (15, 11))),
                ("dataWindow", ((left, top), (left + width - 1, top + height - 1))),
            )
        }
        data = exr(tmp_path / "a.exr", {"Z": stored}, **windows)
        got = values_of(tmp_path / "src/run/depth/0.exr", data)
        np.testing.assert_array_equal(got, whole, strict=True)


def test_openexr_colours_are_at_their_place(tmp_path: Path) -> None:
    planes = {name: pixels_of("f2", 4, 5) for name in "RGBA"}
    window = (np.array([2, 1], np.int32), np.array([6, 4], np.int32))
    frame = (np.array([0, 0], np.int32), np.array([8, 6], np.int32))
    data = exr(tmp_path / "a.exr", dict(planes), dataWindow=window, displayWindow=frame)
    got = values_of(tmp_path / "src/run/image/0.exr", data)
    want = np.zeros((7, 9, 4), "f2")
    want[1:5, 2:7] = np.stack([*planes.values()], axis=-1)
    np.testing.assert_array_equal(got, want, strict=True)


def test_an_index_of_images_of_several_sizes_is_refused_with_the_reason(tmp_path: Path) -> None:
    for key, height in (("a", 5), ("b", 6)):
        folder = tmp_path / "src" / key / "image"
        folder.mkdir(parents=True)
        for number in range(2):
            picture = saved(tmp_path / "0.png", pixels_of("u1", height, 7, 3))
            (folder / f"{number}.png").write_bytes(picture)
    source = seqrecord.open_source(tmp_path / "src")
    with pytest.raises(SourceError, match=r"differ in size.*seqrecord write") as caught:
        index_source(source, tmp_path / "index")
    assert caught.value.feature == "image"
    assert caught.value.got == "image: uint8 [?, 7, 3]"


@pytest.mark.parametrize(("descr", "shape"), [("|S0", "(9,)"), ("<U0", "(5,)"), ("<f4", "(True,)")])
def test_npy_headers_of_no_values(tmp_path: Path, descr: str, shape: str) -> None:
    header = f"{{'descr':'{descr}','fortran_order':False,'shape':{shape}}}\n".encode()
    path = tmp_path / "0.npy"
    path.write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"\0" * 4)
    for read in (array_header, read_array, lambda path: decode_array(path.read_bytes(), path)):
        with pytest.raises(SourceError, match=r"invalid or unsupported npy file; .*shape \("):
            read(path)
