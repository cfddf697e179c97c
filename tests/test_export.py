"""An exported episode is the episode, in files that anything opens and Folders packs again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import seqrecord
from seqrecord import ClipError, Dataset, EncodedImage, SeqRecordWriter, convert
from seqrecord.errors import DestinationError, SchemaError
from seqrecord.export import to_files
from seqrecord.sources import Folders
from tests.datasets import SmallFrame, small_frames, write_small

KEY = "alpha/Easy/P000"


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[Dataset]:
    write_small(tmp_path / "records")
    with seqrecord.open(tmp_path / "records") as opened:
        yield opened


def test_files_and_their_content(dataset: Dataset, tmp_path: Path) -> None:
    frames = small_frames(0, 11)
    files = to_files(dataset, KEY, tmp_path / "out")
    folder = tmp_path / "out" / "alpha" / "Easy" / "P000"
    assert files == sorted(path for path in folder.rglob("*") if path.is_file())
    expected = {"metadata.json", "seqrecord.json", "pose.npy", "step.npy"}
    for i, frame in enumerate(frames):
        for name in frame.keys() - {"pose", "step"}:
            ending = "png" if name in ("image_left", "mask", "range", "photo") else "npy"
            expected.add(f"{name}/{i:06d}.{ending}")
    assert {str(path.relative_to(folder)) for path in files} == expected
    for path in files:
        name = path.parent.name
        if name in frames[0]:
            _assert_same(path, frames[int(path.stem)][name])
    for name in ("pose", "step"):
        stacked = np.load(folder / f"{name}.npy", allow_pickle=False)
        np.testing.assert_array_equal(stacked, np.stack([frame[name] for frame in frames]))
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    assert metadata == {"difficulty": "Easy", "number": 0, "place": "Ürümqi"}


def _assert_same(path: Path, array: npt.NDArray[Any]) -> None:
    if path.suffix == ".png":
        with Image.open(path) as image:
            read = np.asarray(image)
    else:
        read = np.load(path, allow_pickle=False)
    assert read.shape == array.shape
    assert read.tobytes() == array.astype(read.dtype).tobytes()  # NaN and -0.0 too
    # Pillow before 11 reads 16 bits into 32.
    assert read.dtype.itemsize == array.dtype.itemsize or read.dtype == np.int32


def test_images_kept_encoded_are_written_as_they_are(tmp_path: Path) -> None:
    # A PNG that this writer would not produce: a text chunk tells it apart.
    info = PngInfo()
    info.add_text("Comment", "original")
    Image.new("RGB", (9, 7), "red").save(tmp_path / "one.png", pnginfo=info)
    Image.new("RGB", (9, 7), "red").save(tmp_path / "one.jpg", quality=3)
    original = {e: (tmp_path / f"one.{e}").read_bytes() for e in ("png", "jpg")}
    with SeqRecordWriter(tmp_path / "records") as writer, writer.episode("a") as episode:
        episode.append({e: EncodedImage(data) for e, data in original.items()})
    with seqrecord.open(tmp_path / "records") as dataset:
        to_files(dataset, "a", tmp_path / "out")
    for ending, data in original.items():
        assert (tmp_path / "out" / "a" / ending / f"000000.{ending}").read_bytes() == data


def test_round_trip_through_folders(tmp_path: Path) -> None:
    features = ["image_left", "depth_left", "flow", "mask", "photo", "pose", "step"]
    written = write_small(tmp_path / "records", missing=False)
    with seqrecord.open(tmp_path / "records") as dataset:
        for key in dataset.episodes:
            to_files(dataset, key, tmp_path / "tree", features=features)
    convert(Folders(tmp_path / "tree"), tmp_path / "again", workers=1)
    with seqrecord.open(tmp_path / "again") as again:
        assert list(again.episodes) == list(written)
        assert set(again.features) == set(features)
        for key, frames in written.items():
            assert again.episodes[key].metadata["place"] == "Ürümqi"
            assert len(again.episodes[key]) == len(frames)
            for i, frame in enumerate(frames):
                _assert_frame(again.episodes[key][i], {name: frame[name] for name in features})


def _assert_frame(read: SmallFrame, frame: SmallFrame) -> None:
    assert read.keys() == frame.keys()
    for name, array in frame.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes(), name


def test_some_frames_of_some_features(dataset: Dataset, tmp_path: Path) -> None:
    files = to_files(
        dataset, KEY, tmp_path, features=["step", "depth_left"], frames=range(2, 11, 4)
    )
    folder = tmp_path / "alpha" / "Easy" / "P000"
    assert [str(path.relative_to(folder)) for path in files] == [
        "depth_left/000002.npy",
        "depth_left/000006.npy",
        "depth_left/000010.npy",
        "metadata.json",
        "seqrecord.json",
        "step.npy",
    ]
    assert np.load(folder / "step.npy").tolist() == [2, 6, 10]


def test_a_vector_that_a_frame_lacks_is_a_file_a_frame(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "records") as writer, writer.episode("a") as episode:
        episode.append({"joint_1": np.zeros(2), "action": np.ones(3)})
        episode.append({"joint_1": np.zeros(2)})
    with seqrecord.open(tmp_path / "records") as dataset:
        files = to_files(dataset, "a", tmp_path / "out")
    assert [str(path.relative_to(tmp_path / "out" / "a")) for path in files] == [
        "action/000000.npy",
        "joint_1.npy",
        "metadata.json",
        "seqrecord.json",
    ]


def test_a_folder_that_holds_something(dataset: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "alpha" / "Easy" / "P000"
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("precious")
    with pytest.raises(DestinationError, match="not empty"):
        to_files(dataset, KEY, tmp_path)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_a_link_that_leads_out(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "alpha").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DestinationError, match="not inside the destination"):
        to_files(dataset, KEY, tmp_path / "out")
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("frames", [[11], [-1], [3, 2], [2, 2], []])
def test_frames_that_are_not_there(dataset: Dataset, tmp_path: Path, frames: list[int]) -> None:
    with pytest.raises(ClipError, match="frames that cannot be exported"):
        to_files(dataset, KEY, tmp_path / "out", frames=frames)


def test_what_is_not_there(dataset: Dataset, tmp_path: Path) -> None:
    for key in ("alpha/Easy", "../records", "/etc", ""):
        with pytest.raises(ClipError, match="no such episode"):
            to_files(dataset, key, tmp_path / "out")
    with pytest.raises(SchemaError, match="no such feature"):
        to_files(dataset, KEY, tmp_path / "out", features=["nothing"])
    assert not (tmp_path / "out").exists()
