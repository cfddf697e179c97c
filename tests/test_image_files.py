"""Image files beside PNG and JPEG, and npz files: values as stored, or an error that names them."""

from __future__ import annotations

import contextlib
import struct
import zipfile
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.indexing.originals import index_source
from seqrecord.sources import FolderSource
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
        with contextlib.suppress(NotImplementedError):  # old releases only decode
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


@pytest.mark.parametrize("ending", [".ppm", ".tiff", ".webp", ".bmp"])
def test_a_cut_image_is_an_error_that_names_it(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "src" / "run" / "rgb"
    folder.mkdir(parents=True)
    data = written(tmp_path, ending)
    (folder / f"0{ending}").write_bytes(data)
    (folder / f"1{ending}").write_bytes(data[: len(data) * 2 // 3])
    source = open_source(tmp_path / "src")
    with pytest.raises(SourceError) as caught:
        list(source.frames(source.episodes()[0]))
    assert caught.value.file == str(folder / f"1{ending}")
    assert (caught.value.feature, caught.value.frame) == ("rgb", 1)


@pytest.mark.parametrize("ending", [".ppm", ".tiff", ".webp", ".bmp"])
def test_a_png_of_another_name_is_an_error(tmp_path: Path, ending: str) -> None:
    folder = tmp_path / "run" / "rgb"
    folder.mkdir(parents=True)
    (folder / f"0{ending}").write_bytes(written(tmp_path, ".png"))
    with pytest.raises(SourceError, match="another format than its name") as caught:
        open_source(tmp_path).schema()
    assert (caught.value.file, caught.value.got) == (str(folder / f"0{ending}"), "png")


def bits_of_4(tmp_path: Path) -> bytes:
    return tiff(values("u1", 4, 4), "<", t258=4, t256=8)


REFUSED = {
    "most 0": (".pgm", b"P5\n2 2\n0\n\0\0\0\0"),
    "most 65536": (".pgm", b"P5\n2 2\n65536\n" + bytes(8)),
    "a value above the most": (".pgm", b"P5\n2 2\n7\n\0\0\0\x08"),
    "text above the most": (".pgm", b"P2\n2 2\n7\n0 0 0 8\n"),
    "text that is none": (".pgm", b"P2\n2 2\n7\n0 0 0 x\n"),
    "one pixel fewer": (".pgm", b"P2\n2 2\n7\n0 0 0\n"),
    "one byte more": (".pgm", b"P5\n2 2\n7\n\0\0\0\0\0"),
    "no size": (".pgm", b"P5\n0 2\n7\n"),
    "a huge size": (".pgm", b"P5\n99999999 99999999\n7\n\0"),
    "blanks without end": (".pgm", b"P5" + b" " * 5000 + b"x"),
    "another kind": (".ppm", b"P7\nWIDTH 2\n"),
    "4 bits": (".tif", bits_of_4(Path())),
    "half floats": (".tif", tiff(values("f2", 4, 4), "<")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    ending, data = REFUSED[name]
    with pytest.raises(SourceError) as caught:
        packed(tmp_path, ending, data)
    assert caught.value.file == str(tmp_path / "src" / "run" / "depth" / f"0{ending}")


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


def test_pickled_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run" / "depth").mkdir(parents=True)
    objects: Any = np.array([{}], object)
    np.savez(tmp_path / "run" / "depth" / "0.npz", objects)
    with pytest.raises(SourceError, match="pickled") as caught:
        FolderSource(tmp_path).schema()
    assert caught.value.file == str(tmp_path / "run" / "depth" / "0.npz")


@pytest.mark.parametrize("name", ["cut", "no zip", "empty", "no arrays", "bomb"])
def test_broken_npz(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run" / "depth"
    folder.mkdir(parents=True)
    for number in range(2):
        np.savez_compressed(folder / f"{number}.npz", values("f4", 50, 70))
    path = folder / "1.npz"
    data = path.read_bytes()
    if name == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif name == "no zip":
        path.write_bytes(b"PK" + bytes(200))
    elif name == "empty":
        path.write_bytes(b"")
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            if name == "no arrays":
                file.writestr("readme.txt", b"")
            else:  # a header of 70 values, and a gigabyte of zeros behind it
                with file.open("arr_0.npy", "w") as member:
                    member.write(npy_header((50, 70)))
                    for _ in range(64):
                        member.write(bytes(1 << 20))
    source = FolderSource(tmp_path)
    with pytest.raises(SourceError) as caught:
        list(source.frames(source.episodes()[0]))
    assert caught.value.file == str(path)


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
