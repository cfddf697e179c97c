"""`.flo`, PFM and OpenEXR: files of OpenCV, Pillow and OpenEXR, and files that are broken."""

from __future__ import annotations

import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import OpenEXR
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from seqrecord import convert
from seqrecord import open as open_records
from seqrecord.errors import MissingPackageError, SourceError
from seqrecord.sources import FolderSource
from seqrecord.sources.common.array_files import array_header, read_array
from tests.golden.make_rasters import FOLDER, values

Array = npt.NDArray[Any]


def write_exr(path: Path, channels: dict[str, Array], **more: Any) -> None:
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, **more}
    with OpenEXR.File(header, channels) as file:
        file.write(str(path))


@pytest.mark.parametrize(
    ("name", "want"),
    [("flow.flo", values()[..., :2]), ("depth.pfm", values()[..., 0]), ("normals.pfm", values())],
)
def test_files_of_opencv(name: str, want: Array) -> None:
    header = array_header(FOLDER / name)
    assert (header.dtype, header.shape) == (np.dtype("<f4"), want.shape)
    np.testing.assert_array_equal(read_array(FOLDER / name), want, strict=True)


def test_files_of_pillow(tmp_path: Path) -> None:
    depth = np.ascontiguousarray(values()[..., 1])
    try:
        Image.fromarray(depth).save(tmp_path / "a.pfm", "PPM")
    except OSError:
        pytest.skip("Pillow 10.3 writes PFM")
    np.testing.assert_array_equal(read_array(tmp_path / "a.pfm"), depth, strict=True)


def test_a_big_endian_pfm_with_a_scale(tmp_path: Path) -> None:
    pixels = values()[..., 2]
    (tmp_path / "a.PFM").write_bytes(b"Pf 7 5\n2.5e0\n" + pixels[::-1].astype(">f4").tobytes())
    np.testing.assert_array_equal(read_array(tmp_path / "a.PFM"), pixels, strict=True)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<u4"])
@pytest.mark.parametrize("channels", ["Z", "RGB", "RGBA"])
def test_files_of_openexr(tmp_path: Path, dtype: str, channels: str) -> None:
    pixels = np.arange(5 * 7 * len(channels)).reshape(5, 7, -1).astype(dtype)
    planes = {name: np.ascontiguousarray(pixels[..., i]) for i, name in enumerate(channels)}
    write_exr(tmp_path / "a.exr", planes)
    want = pixels if len(channels) > 1 else pixels[..., 0]
    header = array_header(tmp_path / "a.exr")
    assert (header.dtype, header.shape) == (np.dtype(dtype), want.shape)
    np.testing.assert_array_equal(read_array(tmp_path / "a.exr"), want, strict=True)


def test_openexr_channels_that_are_not_one_image(tmp_path: Path) -> None:
    plane = np.zeros((4, 6), "<f4")
    write_exr(tmp_path / "two.exr", {"Z": plane, "id": plane.astype("<u4")})
    with pytest.raises(SourceError, match=r"not one image; .*got: Z \(float32\), id \(uint32\)"):
        array_header(tmp_path / "two.exr")
    write_exr(tmp_path / "xy.exr", {"X": plane, "Y": plane})
    with pytest.raises(SourceError, match=r"not one image; .*got: X \(float32\), Y \(float32\)"):
        array_header(tmp_path / "xy.exr")
    parts = [OpenEXR.Part({"type": OpenEXR.scanlineimage}, {"Z": plane}, name) for name in "ab"]
    with OpenEXR.File(parts) as file:
        file.write(str(tmp_path / "parts.exr"))
    with pytest.raises(SourceError, match="not an OpenEXR file of one flat image"):
        array_header(tmp_path / "parts.exr")


def test_openexr_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_exr(tmp_path / "a.exr", {"Z": np.zeros((4, 6), "<f4")})
    monkeypatch.setitem(sys.modules, "OpenEXR", None)
    with pytest.raises(MissingPackageError, match="pip install OpenEXR"):
        read_array(tmp_path / "a.exr")


def write_tree(tree: Path) -> None:
    """Three frames of flow, depth and normals."""
    for name in ("flow", "depth", "normal"):
        (tree / name).mkdir(parents=True)
    for number in range(3):
        (tree / "flow" / f"{number}.flo").write_bytes((FOLDER / "flow.flo").read_bytes())
        (tree / "depth" / f"{number}.pfm").write_bytes((FOLDER / "depth.pfm").read_bytes())
        planes = {name: values()[..., i] + number for i, name in enumerate("RGB")}
        write_exr(
            tree / "normal" / f"{number}.exr", {k: v.astype("<f2") for k, v in planes.items()}
        )


def test_a_tree_of_rasters_is_packed(tmp_path: Path) -> None:
    tree = tmp_path / "src" / "scene"
    write_tree(tree)
    source = FolderSource(tmp_path / "src")
    assert [str(spec) for spec in source.schema().values()] == [
        "depth: float32 [5, 7]",
        "flow: float32 [5, 7, 2]",
        "frame_number: int64 []",
        "normal: float16 [5, 7, 3]",
    ]
    assert (source.schema()["flow"].kind, source.schema()["flow"].unit) == ("flow", "px")
    assert source.schema()["depth"].kind == "depth"
    convert(source, tmp_path / "records", workers=1)
    with open_records(tmp_path / "records") as dataset:
        frame = dataset.episodes["scene"][2]
        np.testing.assert_array_equal(frame["flow"], values()[..., :2])
        np.testing.assert_array_equal(frame["depth"], values()[..., 0])
        np.testing.assert_array_equal(frame["normal"], (values() + 2).astype("<f2"))
    (tree / "depth" / "1.pfm").write_bytes((FOLDER / "normals.pfm").read_bytes())
    with pytest.raises(SourceError, match="wrong shape") as caught:
        list(source.frames(source.episodes()[0]))
    assert (caught.value.episode, caught.value.frame, caught.value.feature) == ("scene", 1, "depth")


FLOW = (FOLDER / "flow.flo").read_bytes()
DEPTH = (FOLDER / "depth.pfm").read_bytes()
EXR = b"\x76\x2f\x31\x01\x02\0\0\0"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.flo", b"", "not a .flo file"),
        ("a.flo", b"PIEX" + FLOW[4:], "not a .flo file"),
        ("a.flo", FLOW[:-1], "not what its header declares; .*got: 291 bytes"),
        ("a.flo", FLOW + b"\0", "not what its header declares"),
        ("a.flo", b"PIEH" + struct.pack("<ii", -7, 5) + FLOW[12:], "an impossible size"),
        ("a.flo", b"PIEH" + struct.pack("<ii", 1 << 30, 1 << 30), "an impossible size"),
        ("a.pfm", b"", "not a PFM file"),
        ("a.pfm", b"P6" + DEPTH[2:], "not a PFM file"),
        ("a.pfm", b"Pf 7 5 0 " + DEPTH[10:], "not a PFM file"),
        ("a.pfm", b"Pf 7 5 1.2.3 " + DEPTH[10:], "not a PFM file"),
        ("a.pfm", b"Pf 0 5 -1 ", "an impossible size"),
        ("a.pfm", DEPTH[:-4], "not what its header declares"),
        ("a.exr", b"", "cannot be decoded"),
        ("a.exr", EXR, "cannot be decoded"),
        (
            "a.exr",
            b"\x76\x2f\x31\x01\x02\0\0\0channels\0chlist\0\xff\xff\xff\xff",
            "cannot be decoded",
        ),
    ],
)
def test_broken_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        read_array(tmp_path / name)
    assert caught.value.file == str(tmp_path / name)


def test_no_file(tmp_path: Path) -> None:
    for name in ("a.flo", "a.pfm", "a.exr"):
        with pytest.raises(SourceError, match="a file that cannot be read"):
            read_array(tmp_path / name)


@settings(max_examples=60, deadline=None, derandomize=True)  # what the library does is its own
@given(st.data())
def test_damaged_openexr_is_an_error_or_an_image(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("exr") / "a.exr"
    write_exr(path, {name: np.arange(20, dtype="<f4").reshape(4, 5) for name in "RGB"})
    whole = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
        whole[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(SourceError):
        assert read_array(path).dtype.kind in "fu"
