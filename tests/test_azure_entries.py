"""Every entry point takes an Azure location: functions, pipes and commands, on Azurite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import EngineOptions
from seqrecord.errors import ConflictError, DestinationError, NotFoundError
from tests.blobfile_pool import pool_to
from tests.datasets import SmallFrame, small_frames, small_schema, write_small
from tests.services import Azurite
from tests.test_cli import fail, run
from tests.trees import make_frames, write_v1

FEATURES = ["image_left", "depth_left", "pose"]


@dataclass
class Place:
    """The small dataset in a local folder and in Azure."""

    local: Path
    url: str
    options: dict[str, Any]

    @property
    def words(self) -> list[str]:
        return [f"--storage-option={key}={value}" for key, value in self.options.items()]


@pytest.fixture(scope="module")
def place(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Place:
    local = tmp_path_factory.mktemp("datasets") / "local"
    write_small(local)
    place = _new_place(azurite)
    place.local = local
    with azurite.client() as client:
        for file in local.rglob("*"):
            if file.is_file():
                container, _, root = place.url.removeprefix("az://").partition("/")
                name = f"{root}/{file.relative_to(local).as_posix()}"
                client.get_blob_client(container, name).upload_blob(file.read_bytes())
    return place


def _new_place(azurite: Azurite) -> Place:
    options = {"connection_string": azurite.connection_string}
    return Place(Path(), f"az://{azurite.new_container()}/sets/small", options)


@pytest.fixture
def empty(azurite: Azurite) -> Place:
    return _new_place(azurite)


def _clips(location: Any, **settings: Any) -> Iterator[dict[str, Any]]:
    # One thread and small blocks: what is compared are the clips, not the speed.
    settings = {
        "clip_len": 3,
        "seed": 5,
        "features": FEATURES,
        "engine": EngineOptions(num_threads=2),
        **settings,
    }
    yield from seqrecord.SeqRecordPipe(location, **settings)


def _assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs) > 0
    for left, right in zip(ours, theirs, strict=True):
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert _plain(value) == _plain(right[name]), name


def _plain(value: Any) -> Any:
    return value.numpy().tobytes() if torch.is_tensor(value) else value


@pytest.mark.parametrize("backend", ["obstore", "urllib3", "adlfs", "blobfile"])
def test_a_pipe_gives_the_same_clips(
    place: Place, backend: str, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, url = {**place.options, "backend": backend}, place.url
    if backend == "blobfile":
        url = place.url.replace("az://", "az://devstoreaccount1/")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azurite.key)
        options = {"backend": backend, "get_http_pool": partial(pool_to, azurite.host)}
    local = [{**clip} for clip in _clips(place.local)]
    _assert_same([{**clip} for clip in _clips(seqrecord.open(url, storage_options=options))], local)


def _assert_same_frame(got: dict[str, Any], frame: SmallFrame) -> None:
    assert got.keys() == frame.keys()
    for name, array in frame.items():
        np.testing.assert_array_equal(got[name], array)


def test_a_writer_in_azure(empty: Place) -> None:
    with seqrecord.SeqRecordWriter(
        empty.url, schema=small_schema(), storage_options=empty.options, record_bytes=30_000
    ) as writer:
        frames = small_frames(0, 9)
        for frame in frames:
            del frame["photo"]
        with writer.episode("a") as episode:
            for frame in frames:
                episode.append(frame)
        second = seqrecord.SeqRecordWriter(empty.url, mode="resume", storage_options=empty.options)
    with (
        pytest.raises(ConflictError, match="another writer"),
        second,
        second.episode("b") as episode,
    ):
        episode.append(frames[0])
    with seqrecord.open(empty.url, storage_options=empty.options) as dataset:
        for i, frame in enumerate(frames):
            _assert_same_frame(dataset.episodes["a"][i], frame)
    with pytest.raises(DestinationError, match="a dataset is there already"):
        seqrecord.SeqRecordWriter(empty.url, storage_options=empty.options)


def test_commands(place: Place, tmp_path: Path) -> None:
    at = [place.url, *place.words]
    information = json.loads(run("info", *at, "--json", "--clip-len", 3).stdout)
    local = json.loads(run("info", place.local, "--json", "--clip-len", 3).stdout)
    assert information.pop("url") == place.url
    assert local.pop("url") == str(place.local)
    assert information == local
    assert f"{place.url}: no problem found" in run("verify", *at, "--deep").stdout
    run("view", *at, "--clip-len", 3, "-o", tmp_path / "clip.png")
    assert (tmp_path / "clip.png").stat().st_size > 0
    run("export", place.url, "beta/Hard/P000", tmp_path / "files", *place.words)
    assert (tmp_path / "files/beta/Hard/P000/metadata.json").exists()
    run("bench", *at, "--clip-len", 3, "--batch-size", 2)


def test_the_write_command(empty: Place, tmp_path: Path) -> None:
    for number in range(2):
        write_v1(tmp_path / "cave" / "Easy" / f"P00{number}", make_frames(number, 3))
    words = ["write", "--src", tmp_path, "--dst", empty.url, *empty.words]
    assert f"{empty.url}: wrote 2 episodes" in run(*words, "--workers", 1).stdout
    assert "a dataset is there already" in fail(*words, "--quiet")
    run("reindex", empty.url, *empty.words)
    with seqrecord.open(empty.url, storage_options=empty.options) as dataset:
        assert list(dataset.episodes) == ["cave/Easy/P000", "cave/Easy/P001"]


def test_nothing_there(empty: Place) -> None:
    with pytest.raises(NotFoundError, match="no dataset here"):
        seqrecord.open(empty.url, storage_options=empty.options)
    with pytest.raises(NotFoundError, match=r"no such container.*az://nothing-here"):
        seqrecord.open("az://nothing-here/x", storage_options=empty.options)
    for command in ("info", "verify"):
        assert "no dataset here" in fail(command, empty.url, *empty.words)
    assert "no such container" in fail("info", "az://nothing-here/x", *empty.words)
