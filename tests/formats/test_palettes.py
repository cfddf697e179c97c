"""Images with a palette: colours, or indices in features of masks and labels."""

from __future__ import annotations

import io
import logging
import re
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import Source, inventory_of
from tests.formats.cases import index_source
from tests.kit.source_faults import frames_of

INDICES: npt.NDArray[np.uint8] = np.arange(80, dtype=np.uint8).reshape(8, 10) % 7
COLOURS = np.random.default_rng(0).integers(0, 256, (7, 3), np.uint8)
ALPHA = np.array([0, 255, 128, 255, 255, 9, 255], np.uint8)


def encoded(ending: str, *, has_alpha: bool = False) -> bytes:
    image = Image.fromarray(INDICES).convert("P")
    image.putpalette(COLOURS.tobytes())
    file = io.BytesIO()
    options: dict[str, Any] = {"transparency": ALPHA.tobytes()} if has_alpha else {}
    image.save(file, {"tif": "tiff"}.get(ending, ending), **options)
    return file.getvalue()


def write(folder: Path, name: str, ending: str = "png", **options: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        (folder / f"{number}.{ending}").write_bytes(encoded(ending, **options))
    assert name in str(folder)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in texts if "palette" in text]


@pytest.mark.parametrize("ending", ["png", "bmp", "tif"])
@pytest.mark.parametrize(
    ("name", "are_indices", "is_warned"),
    [
        ("rgb", False, False),
        ("left_image", False, False),
        ("cam0", False, True),
        ("mask", True, False),
        ("semantic_labels", True, False),
        ("gt", True, True),
        ("objects", True, True),
        ("trackIds", True, True),
    ],
)
def test_the_name_decides(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    ending: str,
    name: str,
    are_indices: bool,
    is_warned: bool,
) -> None:
    write(tmp_path / "run" / name, name, ending)
    source = open_source(tmp_path)
    spec, want = source.schema()[name], INDICES if are_indices else COLOURS[INDICES]
    assert (str(spec.dtype), spec.shape) == ("uint8", want.shape)
    assert spec.kind == ("image" if not are_indices else None if is_warned else spec.kind)
    for frame in frames_of(source):
        np.testing.assert_array_equal(frame[name], want, strict=True)
    notes = [note for note in inventory_of(source).notes if "palette" in note]
    how = "indices" if are_indices else "colours"
    assert [re.sub(";.*", "", note) for note in notes] == [
        f"feature {name}: images with a palette, read as {how}"
    ]
    assert len(warned(caplog)) == is_warned
    seqrecord.convert(source, tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        np.testing.assert_array_equal(dataset.episodes["run"][1][name], want)


def test_colours_with_alpha(tmp_path: Path) -> None:
    write(tmp_path / "run" / "rgb", "rgb", has_alpha=True)
    write(tmp_path / "run" / "mask", "mask", has_alpha=True)
    [frame, _] = frames_of(open_source(tmp_path))
    want = np.concatenate([COLOURS, ALPHA[:, None]], axis=1)[INDICES]
    np.testing.assert_array_equal(frame["rgb"], want, strict=True)
    np.testing.assert_array_equal(frame["mask"], INDICES, strict=True)


def test_images_of_which_some_have_a_palette(tmp_path: Path) -> None:
    """As of optimizers: colours of all, and no colours among greys."""
    for place in ("a/run/rgb", "b/run/rgb"):
        write(tmp_path / place, "rgb")
    Image.fromarray(COLOURS[INDICES]).save(tmp_path / "a/run/rgb/0.png")
    Image.fromarray(INDICES).save(tmp_path / "b/run/rgb/0.png")
    for frame in frames_of(open_source(tmp_path / "a")):
        np.testing.assert_array_equal(frame["rgb"], COLOURS[INDICES], strict=True)
    for source in (open_source(tmp_path / "a", keep_encoded=True), open_source(tmp_path / "b")):
        with pytest.raises(SourceError, match="differs from the first one"):
            frames_of(source)


@pytest.mark.parametrize(("name", "kind"), [("cam0", "segmentation"), ("gt", "image")])
def test_a_kind_of_other_values_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """The source has decided before; the message names the way."""
    write(tmp_path / "run" / name, name)
    source = open_source(tmp_path)
    with pytest.raises(SourceError, match=r"with a palette, read as .*rename its files") as caught:
        seqrecord.convert(source, tmp_path / "records", workers=1, kinds={name: kind})
    assert (caught.value.feature, caught.value.got) == (name, kind)
    kind = {"gt": "segmentation", "cam0": "image"}[name]
    seqrecord.convert(source, tmp_path / "records", workers=1, kinds={name: kind})


def webdataset(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w") as file:
        for number in range(2):
            for name in ("rgb", "seg"):
                info = tarfile.TarInfo(f"{number:03d}.{name}.png")
                info.size = len(data := encoded("png"))
                file.addfile(info, io.BytesIO(data))


def tum(folder: Path) -> None:
    write(folder / "a" / "rgb", "rgb")
    (folder / "a" / "rgb.txt").write_text("0.0 rgb/0.png\n1.0 rgb/1.png\n")


def hdf5(folder: Path) -> None:
    with h5py.File(folder / "a.hdf5", "w") as file:
        for name in ("rgb", "seg"):
            rows = file.create_dataset(name, 2, h5py.vlen_dtype(np.uint8))
            rows[0] = rows[1] = np.frombuffer(encoded("png"), np.uint8)


@pytest.mark.parametrize(
    ("make", "options"),
    [(webdataset, {}), (tum, {}), (hdf5, {"map": {"rgb": "/rgb", "seg": "/seg"}})],
    ids=["webdataset", "tum", "hdf5"],
)
def test_other_sources(tmp_path: Path, make: Any, options: dict[str, Any]) -> None:
    (tmp_path / "o").mkdir()
    make(tmp_path / "o")
    source: Source = open_source(tmp_path / "o", **options)
    wants = {"rgb": COLOURS[INDICES], "image": COLOURS[INDICES], "seg": INDICES}
    names = [name for name in source.schema() if name in wants]
    assert names
    for frame in frames_of(source):
        for name in names:
            np.testing.assert_array_equal(frame[name], wants[name], strict=True)
    assert sum("palette" in note for note in inventory_of(source).notes) == len(names)


def test_palettes_in_place_are_copied_or_left_out(tmp_path: Path) -> None:
    write(tmp_path / "o" / "run" / "rgb", "rgb")
    (tmp_path / "o/run/grey").mkdir()
    for number in range(2):
        Image.fromarray(INDICES).save(tmp_path / f"o/run/grey/{number}.png")
    index_source(open_source(tmp_path / "o"), tmp_path / "index", workers=1)
    with seqrecord.open(tmp_path / "index") as dataset:
        np.testing.assert_array_equal(dataset.episodes["run"][0]["rgb"], COLOURS[INDICES])
