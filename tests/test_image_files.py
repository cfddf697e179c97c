"""Image files beside PNG and JPEG, rasters of floats, npz: values as stored, or an error."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import OpenEXR
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import seqrecord
from seqrecord import open_source
from seqrecord.errors import MissingPackageError, SourceError
from seqrecord.sources import FolderSource
from tests.golden.make_rasters import FOLDER
from tests.golden.make_rasters import values as rasters
from tests.in_place_cases import index_source
from tests.source_writers import write_euroc, write_kitti, write_tar, write_tum

Array = npt.NDArray[Any]


def values(dtype: str, *shape: int) -> Array:
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def packed(tmp_path: Path, name: str, data: bytes) -> Array:
    """The second frame of a feature of two equal files, through a dataset."""
    folder = tmp_path / "src" / "run" / "depth"
    folder.mkdir(parents=True)
    for number in range(2):
        (folder / f"{number}{name}").write_bytes(data)
    seqrecord.convert(open_source(tmp_path / "src"), tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        return np.asarray(dataset.episodes["run"][1]["depth"])


def netpbm(kind: str, pixels: Array, most: int, comment: str = "") -> bytes:
    height, width = pixels.shape[:2]
    head = f"{kind}\n{comment}{width} {height}\n" + ("" if kind in ("P1", "P4") else f"{most}\n")
    if kind in ("P1", "P2", "P3"):
        text = "\n".join(" ".join(map(str, row.ravel().tolist())) for row in pixels)
        return f"{head}{text}\n".encode()
    if kind == "P4":
        return head.encode() + np.packbits(pixels, axis=1).tobytes()
    return head.encode() + pixels.astype(">u2" if most > 255 else "u1").tobytes()


@pytest.mark.parametrize(
    ("kind", "dtype", "channels", "most"),
    [
        ("P5", "u1", (), 255),
        ("P5", "u2", (), 65535),
        ("P5", "u2", (), 4095),
        ("P5", "u1", (), 15),
        ("P6", "u1", (3,), 255),
        ("P6", "u2", (3,), 65535),
        ("P2", "u2", (), 10_000),
        ("P3", "u1", (3,), 255),
    ],
    ids=str,
)
@pytest.mark.parametrize("ending", [".pgm", ".PNM"])
def test_netpbm(
    tmp_path: Path, kind: str, dtype: str, channels: tuple[int, ...], most: int, ending: str
) -> None:
    """Not scaled: Pillow would turn 4095 into 65535, and 16-bit colour into 8 bits."""
    pixels = values(dtype, 5, 7, *channels).astype(np.int64) % (most + 1)
    data = netpbm(kind, pixels.astype(dtype), most, "# made by hand\n")
    want = pixels.astype(dtype)
    np.testing.assert_array_equal(packed(tmp_path, ending, data), want, strict=True)


@pytest.mark.parametrize("kind", ["P1", "P4"])
def test_bitmaps(tmp_path: Path, kind: str) -> None:
    bits = values("u1", 5, 9) % 2
    got = packed(tmp_path, ".pbm", netpbm(kind, bits, 1))
    np.testing.assert_array_equal(got, bits == 1, strict=True)  # 1 is black ink


@pytest.mark.parametrize(
    "pixels",
    [
        values("u1", 5, 7),
        values("u2", 5, 7),
        values("i2", 5, 7),
        values("u4", 5, 7),
        values("i4", 5, 7),
        values("f4", 5, 7),
        values("u1", 5, 7, 3),
        values("u2", 5, 7, 3),
        values("u1", 5, 7, 4),
    ],
    ids=lambda array: f"{array.dtype}{array.shape[2:]}",
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_tiff(tmp_path: Path, pixels: Array, order: Any) -> None:
    data = tiff(pixels, order)
    if order == "<":
        with suppress(NotImplementedError):  # old releases only decode
            data = bytes(imagecodecs.tiff_encode(pixels))
    if order == ">" and pixels.dtype == np.uint32:
        pytest.skip("Pillow does not read it")
    np.testing.assert_array_equal(packed(tmp_path, ".tiff", data), pixels, strict=True)


def tiff(pixels: Array, order: Any, **more: int) -> bytes:
    """One strip without compression; `more` are other tags by number, `t262=0`."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    data = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
    bits = 8 * pixels.dtype.itemsize
    sample = {"u": 1, "i": 2, "f": 3}[pixels.dtype.kind]
    tags: dict[int, list[int]] = {
        256: [width],
        257: [height],
        258: [bits] * channels,
        259: [1],
        262: [2 if channels > 1 else 1],
        273: [8],
        277: [channels],
        278: [height],
        279: [len(data)],
        339: [sample] * channels,
    }
    if channels == 4:
        tags[338] = [2]
    tags |= {int(tag[1:]): [value] for tag, value in more.items()}
    mark = b"II*\0" if order == "<" else b"MM\0*"
    place = 8 + len(data)
    entries, far = b"", b""
    after = place + 2 + 12 * len(tags) + 4
    for tag, found in sorted(tags.items()):
        packed_ = struct.pack(f"{order}{len(found)}H", *found)
        if len(packed_) > 4:
            value = struct.pack(f"{order}I", after + len(far))
            far += packed_
        else:
            value = packed_.ljust(4, b"\0")
        entries += struct.pack(f"{order}HHI", tag, 3, len(found)) + value
    directory = struct.pack(f"{order}H", len(tags)) + entries + b"\0\0\0\0"
    return mark + struct.pack(f"{order}I", place) + data + directory + far


@pytest.mark.parametrize(
    ("ending", "options"), [(".webp", {"lossless": True, "exact": True}), (".bmp", {})]
)
@pytest.mark.parametrize("channels", [(3,), (4,), ()], ids=str)
def test_webp_and_bmp(
    tmp_path: Path, ending: str, options: dict[str, Any], channels: tuple[int, ...]
) -> None:
    pixels = values("u1", 5, 7, *channels)
    if ending == ".bmp" and channels == (4,):
        pytest.skip("Pillow writes no alpha")
    Image.fromarray(pixels).save(tmp_path / f"a{ending}", **options)
    want = pixels
    if ending == ".webp" and not channels:
        want = np.stack([pixels] * 3, axis=-1)  # WebP has colour only
    got = packed(tmp_path, ending, (tmp_path / f"a{ending}").read_bytes())
    np.testing.assert_array_equal(got, want, strict=True)


def written(tmp_path: Path, ending: str) -> bytes:
    Image.fromarray(values("u1", 40, 40, 3)).save(tmp_path / f"whole{ending}")
    return (tmp_path / f"whole{ending}").read_bytes()


@pytest.mark.parametrize(
    ("name", "data", "want"),
    [
        (".flo", (FOLDER / "flow.flo").read_bytes(), rasters()[..., :2]),  # all of OpenCV
        (".pfm", (FOLDER / "depth.pfm").read_bytes(), rasters()[..., 0]),
        (".pfm", (FOLDER / "normals.pfm").read_bytes(), rasters()),
        (  # big-endian, with a scale
            ".PFM",
            b"Pf 7 5\n2.5e0\n" + rasters()[::-1, :, 2].astype(">f4").tobytes(),
            rasters()[..., 2],
        ),
        (".dpt", b"PIEH\7\0\0\0\5\0\0\0" + rasters()[..., 0].tobytes(), rasters()[..., 0]),
    ],
    ids=["flow", "depth", "normals", "scale", "sintel"],
)
def test_rasters(tmp_path: Path, name: str, data: bytes, want: Array) -> None:
    np.testing.assert_array_equal(packed(tmp_path, name, data), want, strict=True)


def test_pfm_of_pillow(tmp_path: Path) -> None:
    depth = np.ascontiguousarray(rasters()[..., 1])
    try:
        Image.fromarray(depth).save(tmp_path / "a.pfm", "PPM")
    except OSError:
        pytest.skip("Pillow 10.3 writes PFM")
    got = packed(tmp_path, ".pfm", (tmp_path / "a.pfm").read_bytes())
    np.testing.assert_array_equal(got, depth, strict=True)


def exr(path: Path, channels: dict[str, Array], **more: Any) -> bytes:
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, **more}
    with OpenEXR.File(header, channels) as file:
        file.write(str(path))
    return path.read_bytes()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<u4"])
@pytest.mark.parametrize("channels", ["Z", "RGB", "RGBA"])
def test_files_of_openexr(tmp_path: Path, dtype: str, channels: str) -> None:
    pixels = np.arange(5 * 7 * len(channels)).reshape(5, 7, -1).astype(dtype)
    planes = {name: np.ascontiguousarray(pixels[..., i]) for i, name in enumerate(channels)}
    want = pixels if len(channels) > 1 else pixels[..., 0]
    got = packed(tmp_path, ".exr", exr(tmp_path / "a.exr", planes))
    np.testing.assert_array_equal(got, want, strict=True)


def test_openexr_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = exr(tmp_path / "a.exr", {"Z": np.zeros((4, 6), "<f4")})
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with pytest.raises(MissingPackageError, match="pip install OpenEXR"):
        packed(tmp_path, ".exr", data)


@settings(max_examples=60, deadline=None, derandomize=True)  # what the library does is its own
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


def test_a_tree_of_rasters_is_packed(tmp_path: Path) -> None:
    tree = tmp_path / "src" / "scene"
    write_tree(tree)
    source = FolderSource(tmp_path / "src")
    assert [(str(s), s.kind, s.unit) for s in source.schema().values()] == [
        ("depth: float32 [5, 7]", "depth", None),
        ("flow: float32 [5, 7, 2]", "flow", "px"),
        ("frame_number: int64 []", "frame_number", None),
        ("normal: float16 [5, 7, 3]", "normals", None),
    ]
    seqrecord.convert(source, tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        frame = dataset.episodes["scene"][2]
        np.testing.assert_array_equal(frame["flow"], rasters()[..., :2])
        np.testing.assert_array_equal(frame["depth"], rasters()[..., 0])
        np.testing.assert_array_equal(frame["normal"], (rasters() + 2).astype("<f2"))
    (tree / "depth" / "1.pfm").write_bytes((FOLDER / "normals.pfm").read_bytes())
    with pytest.raises(SourceError, match="wrong shape") as caught:
        list(source.frames(source.episodes()[0]))
    assert (caught.value.episode, caught.value.frame, caught.value.feature) == ("scene", 1, "depth")


# --- ways to be broken -------------------------------------------------------------------------


def npz(*arrays: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, *arrays, **options)
    return stream.getvalue()


def zipped(name: str, *parts: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file, file.open(name, "w") as member:
        for part in parts:
            member.write(part)
    return stream.getvalue()


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


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
NPZ = npz(values("f4", 50, 70))
GOOD: dict[str, Callable[[Path], bytes] | bytes] = {
    **{
        ending: partial(written, ending=ending)
        for ending in (".ppm", ".tiff", ".webp", ".bmp", ".png")
    },
    ".pgm": b"P5\n2 2\n7\n\0\0\0\0",
    ".tif": tiff(values("u1", 4, 4), "<"),
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
    (".pgm", b"P5\n2 2\n7\n\0\0\0\x08", ""),  # above the most
    (".pgm", b"P2\n2 2\n7\n0 0 0 8\n", ""),
    (".pgm", b"P2\n2 2\n7\n0 0 0 x\n", ""),
    (".pgm", b"P2\n2 2\n7\n0 0 0\n", ""),
    (".pgm", b"P5\n2 2\n7\n\0\0\0\0\0", ""),
    (".pgm", b"P5\n0 2\n7\n", ""),
    (".pgm", b"P5\n99999999 99999999\n7\n\0", ""),
    (".pgm", b"P5" + b" " * 5000 + b"x", ""),
    (".ppm", b"P7\nWIDTH 2\n", ""),
    (".tif", tiff(values("u1", 4, 4), "<", t258=4, t256=8), ""),  # of 4 bits
    (".tif", tiff(values("f2", 4, 4), "<"), ""),
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
    (".npz", zipped("readme.txt"), ""),
    (".npz", zipped("arr_0.npy", npy_header((50, 70)), *[bytes(1 << 20)] * 64), ""),  # a bomb
    (".npz", npz(np.array([{}], object)), "pickled"),
]


def bytes_of(data: Callable[[Path], bytes] | bytes, tmp_path: Path) -> bytes:
    return data if isinstance(data, bytes) else data(tmp_path)


@pytest.mark.parametrize("number", range(len(REFUSED)))
@pytest.mark.parametrize("is_first", [False, True])
def test_refused(tmp_path: Path, number: int, is_first: bool) -> None:
    """The first file of a feature says what all are; a later one is compared with it."""
    ending, data, match = REFUSED[number]
    folder = tmp_path / "src" / "run" / "depth"
    folder.mkdir(parents=True)
    if not is_first:
        (folder / f"0{ending}").write_bytes(bytes_of(GOOD[ending], tmp_path))
    bad = folder / f"{int(not is_first)}{ending}"
    bad.write_bytes(bytes_of(data, tmp_path))
    source = FolderSource(tmp_path / "src")
    with pytest.raises(SourceError, match=match or ".") as caught:
        list(source.frames(source.episodes()[0]))
    assert caught.value.file == str(bad)
    if not is_first:
        assert (caught.value.episode, caught.value.frame) == ("run", 1)


@pytest.mark.parametrize("ending", [".ppm", ".tiff", ".webp", ".bmp", ".flo", ".pfm", ".exr"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_file_that_is_cut_or_gone(tmp_path: Path, ending: str, is_gone: bool) -> None:
    folder = tmp_path / "src" / "run" / "rgb"
    folder.mkdir(parents=True)
    data = bytes_of(GOOD[ending], tmp_path)
    for number in range(2):
        (folder / f"{number}{ending}").write_bytes(data)
    source = FolderSource(tmp_path / "src")
    assert len(list(source.frames(source.episodes()[0]))) == 2
    bad, frames = folder / f"1{ending}", source.frames(source.episodes()[0])
    next(frames)
    bad.write_bytes(data[: len(data) * 2 // 3])
    if is_gone:
        bad.unlink()
    with pytest.raises(SourceError, match="cannot read" if is_gone else ".") as caught:
        next(frames)
    assert (caught.value.file, caught.value.feature) == (str(bad), "rgb")
    assert caught.value.frame == 1


def test_only_png_and_jpeg_stay_encoded(tmp_path: Path) -> None:
    """A feature of PNG and other images is decoded, whatever comes first."""
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
    index_source(open_source(src), tmp_path / "index")
    with seqrecord.open(tmp_path / "index") as dataset:  # in place, but for two features
        assert dataset.episodes["run"][1]["rgb"].shape == (40, 40, 3)


def test_sequences_read_them_too(tmp_path: Path) -> None:
    """The lists of TUM and EuRoC name files, and KITTI's folders have them."""
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


def test_tar_files_have_them_too(tmp_path: Path) -> None:
    depth = values("f4", 3, 5, 7)
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


def test_npz_of_a_frame(tmp_path: Path) -> None:
    depth, points = values("f4", 3, 5, 7), values("f8", 3, 9, 3)
    for number in range(3):
        (tmp_path / "run" / "depth").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / "lidar").mkdir(parents=True, exist_ok=True)
        np.savez_compressed(tmp_path / "run" / "depth" / f"{number:06d}.npz", depth[number])
        np.savez(
            tmp_path / "run" / "lidar" / f"{number:06d}.npz",
            points=points[number],
            intensity=points[number, :, 0],
        )
    source = FolderSource(tmp_path)
    assert [str(spec) for spec in source.schema().values()] == [
        "depth: float32 [5, 7]",
        "frame_number: int64 []",
        "intensity: float64 [9]",
        "points: float64 [9, 3]",
    ]
    for index, frame in enumerate(source.frames(source.episodes()[0])):
        np.testing.assert_array_equal(frame["depth"], depth[index], strict=True)
        np.testing.assert_array_equal(frame["points"], points[index], strict=True)
        np.testing.assert_array_equal(frame["intensity"], points[index, :, 0], strict=True)
    seqrecord.convert(source, tmp_path.parent / f"{tmp_path.name}-records", workers=1)


def test_npz_of_an_episode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    actions, state = values("f4", 6, 2), values("i8", 6)
    np.savez(tmp_path / "a" / "data.npz", actions=actions, state=state, K=np.eye(3))
    np.savez(tmp_path / "a" / "reward.npz", np.arange(6.0))
    source = FolderSource(tmp_path)
    assert [info.num_frames for info in source.episodes()] == [6]
    assert [*source.schema()] == ["actions", "frame_number", "reward", "state"]
    for index, frame in enumerate(source.frames(source.episodes()[0])):
        np.testing.assert_array_equal(frame["actions"], actions[index], strict=True)
        assert (frame["state"], frame["reward"]) == (state[index], index)


def test_npz_at_the_root_makes_no_episode_of_it(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name / "rgb").mkdir(parents=True)
        Image.fromarray(values("u1", 4, 5, 3)).save(tmp_path / name / "rgb" / "0.png")
    np.savez(tmp_path / "mean.npz", np.zeros(3))
    assert [info.key for info in FolderSource(tmp_path).episodes()] == ["a", "b"]
