"""Images of every layout of their formats: the stored values, or an error that names the file.

Files are written from given pixels, without the libraries that decode them.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord.errors import MissingPackageError, SourceError
from tests.formats.cases import index_source
from tests.formats.image_data import exr, saved
from tests.kit.image_layouts import pixels_of, png_layouts, tiff_layouts
from tests.kit.tiff_files import DEFLATE, LZW, RAW, tiff_file

Array = npt.NDArray[Any]


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
