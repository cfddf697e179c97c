"""Folders above datasets, and parts of datasets, are not taken for folders of files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import Source, Videos
from tests.command_line import fail
from tests.lerobot_video_data import unpack
from tests.source_writers import write_buffer
from tests.test_source_contract import upload
from tests.tiny import write_tiny


@pytest.mark.parametrize("version", ["v21", "v3"])
def test_a_folder_above_two_lerobot_datasets(tmp_path: Path, version: str) -> None:
    for name in ("org/one", "org/two"):
        shutil.copytree(unpack(tmp_path / "x", f"lerobot_video_{version}"), tmp_path / "y" / name)
    for use in (open_source, seqrecord.open):
        with pytest.raises(SourceError, match=r"above 2 datasets \(lerobot\)") as caught:
            use(tmp_path / "y")
        assert caught.value.got == "org/one, org/two"
        assert f"seqrecord write --src {tmp_path}/y/org/one" in caught.value.message
    assert "org/one, org/two" in fail("write", "--src", tmp_path / "y", "--dst", tmp_path / "r")


def test_a_url_above_lerobot_datasets(tmp_path: Path, memory_url: str) -> None:
    upload(unpack(tmp_path, "lerobot_video_v21"), f"{memory_url}/org/one")
    for use in (open_source, seqrecord.open):
        with pytest.raises(SourceError, match="a folder above 1 dataset") as caught:
            use(memory_url)
        assert caught.value.got == "org/one"
        assert f"--src {memory_url}/org/one" in caught.value.message


@pytest.mark.parametrize("part", ["videos", "videos/*", "videos/*/*", "data", "meta"])
def test_a_part_of_a_lerobot_dataset(tmp_path: Path, part: str) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    path = next(root.glob(part))
    with pytest.raises(SourceError, match="a part of a LeRobot dataset") as caught:
        open_source(path)
    assert caught.value.expected == str(root)
    if part == "videos":
        source: Source = open_source(path, format="videos")
        assert isinstance(source, Videos)
        with pytest.raises(SourceError, match="a part of a LeRobot dataset"):
            open_source(next(path.rglob("*.mp4")))


def test_a_folder_above_packed_datasets_and_replay_buffers(tmp_path: Path) -> None:
    pytest.importorskip("zarr")  # it needs Python 3.11
    for name in ("a", "b"):
        write_tiny(tmp_path / "records" / name)
        write_buffer(tmp_path / "buffers" / name / "x.zarr")
    for folder, names in (("records", "a, b"), ("buffers", "a/x.zarr, b/x.zarr")):
        for use in (open_source, seqrecord.open):
            with pytest.raises(SourceError, match="a folder above 2 datasets") as caught:
                use(tmp_path / folder)
            assert caught.value.got == names
