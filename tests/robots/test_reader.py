"""The reader for LeRobot's main branch, against a stand-in for its modules."""

from __future__ import annotations

import importlib
import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord.errors import DestinationError, NotFoundError, SeqRecordError, SourceError
from seqrecord.lerobot import LeRobotDataset, PlannedSampler, mark_dataset
from tests.kit.lerobot_stand_in import Metadata, same
from tests.kit.lerobot_video_data import CAMERAS, unpack
from tests.kit.services.hub_stub import HubStub, without_login
from tests.robots.main_stand_in import PLUGIN, Dataset, write

WINDOWS = {CAMERAS[0]: [-0.1, 0.0], "observation.state": [0.0, 0.1, 0.2], "index": [-0.1]}


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The stand-in's modules, with our reader registered as by LeRobot's plug-in."""
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SEQRECORD_LEROBOT", raising=False)
    monkeypatch.syspath_prepend(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    modules = write(tmp_path / "installed")
    assert importlib.import_module("lerobot_policy_seqrecord.training").registered()
    yield modules
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("lerobot", "lerobot_policy_seqrecord"):
            del sys.modules[name]


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return unpack(tmp_path, "lerobot_video_v3")


@pytest.fixture(params=["in place", "packed", "on a URL", "packed, on a URL"])
def root(original: Path, tmp_path: Path, request: pytest.FixtureRequest, main: Path) -> Any:
    del main
    path = tmp_path / "marked"
    if "packed" in request.param:
        seqrecord.convert(seqrecord.open_source(original), path, workers=1)
        mark_dataset(path, original)
    else:
        shutil.copytree(original, path)
        mark_dataset(path)
    return path.as_uri() if "URL" in request.param else path


OPTIONS: list[dict[str, Any]] = [
    {},
    {"delta_timestamps": WINDOWS, "return_uint8": True},
    {"episodes": [2, 0, 9], "delta_timestamps": WINDOWS, "image_transforms": torch.neg},
]


def test_items_equal_our_class(root: Any, original: Path) -> None:
    for options in OPTIONS:
        got = Dataset("a/test", root, **options)
        existing = {**options, "episodes": [2, 0]} if "episodes" in options else options
        wanted = LeRobotDataset("a/test", original, meta=Metadata("a/test", original), **existing)
        assert len(got) == len(wanted) == (12 if "episodes" in options else 16)
        for name in ("episodes", "num_episodes", "absolute_to_relative_idx"):
            assert getattr(got.reader, name) == getattr(wanted, name)
        items = wanted[:]
        assert all(map(same, got.__getitems__(range(len(got))), items))
        assert same(got[5], items[5])
        if not options:
            assert same(pickle.loads(pickle.dumps(got.reader)).get_item(5), items[5])


def test_transforms_are_replaced(main: Path, original: Path) -> None:
    mark_dataset(original)
    got, name = Dataset("a/test", original, image_transforms=torch.neg), CAMERAS[0]
    assert got[0][name].max() <= 0
    got.set_image_transforms(None)
    assert got[0][name].max() > 0
    got.set_image_transforms(torch.neg)
    got.reader.clear_image_transforms()
    assert got[0][name].max() > 0


def test_the_planned_order_decodes_each_frame_once(main: Path, original: Path) -> None:
    mark_dataset(original)
    got = Dataset("a/test", original, delta_timestamps={name: [-0.1, 0.0] for name in CAMERAS})
    sampler = PlannedSampler(got.reader, batch_size=4, seed=1)
    batches = DataLoader(got, batch_size=4, sampler=sampler, collate_fn=list)
    found = [item["index"].item() for batch in batches for item in batch]
    assert sorted(found) == [*range(16)]
    stats = got.reader.stats()
    assert stats["items_in_order"] == 16
    assert stats["video_frames_decoded"] == 2 * 16


def test_a_local_copy_of_meta_only_is_read_from_the_hub(
    main: Path, original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark_dataset(original)
    complete, here = original.parent / "complete", original.parent / "a/test"
    shutil.copytree(original, complete)
    for name in ("data", "videos"):
        shutil.rmtree(original / name)
    here.parent.mkdir()
    original.rename(here)
    without_login(monkeypatch, original.parent)
    monkeypatch.setenv("HF_LEROBOT_HOME", str(original.parent))
    with HubStub(complete, "a/test", token="hf_S3CRET") as hub:
        hub.branches |= dict.fromkeys(("v1", "v3.0"), hub.branches["main"])
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        found = Dataset("a/test", token="hf_S3CRET", revision="v1")
        assert len(found) == 16
        assert same(found[5], Dataset("a/test", complete)[5])
        assert [path for path in hub.asked if path.endswith("revision/v1")]
        with pytest.raises(NotFoundError, match="HF_TOKEN"):
            Dataset("a/test", here)
        assert [path for path in hub.asked if path.endswith("revision/v3.0")]


def test_roots_on_urls(main: Path, original: Path, tmp_path: Path) -> None:
    reader = importlib.import_module("lerobot_policy_seqrecord.reader")
    url = original.as_uri()
    for other in (url, (tmp_path / "none").as_uri(), "unknown://bucket/set"):
        with pytest.raises(FileNotFoundError):  # another format may support it
            reader.localize_root("a/test", other)
    info = original / "meta/info.json"
    content = info.read_bytes()
    for broken in (b"[]", b"3", b"\xff", b"{"):
        info.write_bytes(broken)
        with pytest.raises(FileNotFoundError):
            reader.localize_root("a/test", url)
    info.write_bytes(content)
    mark_dataset(original)
    copy = reader.localize_root("a/test", url)
    assert reader.localize_root("a/test", url, force_cache_sync=True) == copy
    names = [path.relative_to(original) for path in original.glob("meta/**/*")]
    assert sorted(names) == sorted(path.relative_to(copy) for path in copy.glob("meta/**/*"))
    (original / "meta/stats.json").write_text("{}")
    assert (reader.localize_root("a/test", url) / "meta/stats.json").read_text() == "{}"
    assert len([*copy.parent.iterdir()]) == 2


def test_revision_and_token_of_hub_urls(main: Path) -> None:
    address = importlib.import_module("lerobot_policy_seqrecord.reader").address
    hub = "hf://datasets/org/name"
    assert address(f"{hub}/records", "v1", False) == (f"{hub}@v1/records", {"token": False})
    assert address(f"{hub}@main/records", "v1", None) == (f"{hub}@main/records", None)
    assert address("s3://bucket/records", "v1", "secret") == ("s3://bucket/records", None)


def test_another_interface_is_refused(main: Path) -> None:
    module = main / "dataset_reader.py"
    module.write_text(module.read_text() + "    def close(self): ...\n")
    ours = importlib.import_module("lerobot_policy_seqrecord.reader")  # more methods are allowed
    module.write_text(module.read_text() + "    @abstractmethod\n    def rows(self): ...\n")
    importlib.reload(ours.dataset_reader)
    with pytest.raises(SeqRecordError, match=r"got: abstract of the reader: rows$"):
        importlib.reload(ours)


def test_a_mark_keeps_other_metadata(original: Path, tmp_path: Path) -> None:
    before = json.loads((original / "meta/info.json").read_text())
    for _ in range(2):
        mark_dataset(original)
    after = json.loads((original / "meta/info.json").read_text())
    assert after == {**before, "storage_format": "seqrecord"}
    packed = tmp_path / "packed"
    packed.mkdir()
    for _ in range(2):
        mark_dataset(packed, original)
    assert json.loads((packed / "meta/info.json").read_text()) == after
    assert {p.name for p in packed.iterdir()} == {"meta"}
    (packed / "meta/info.json").write_text(json.dumps(before))
    (packed / "meta/info.new").write_text("x")
    with pytest.raises(DestinationError, match="of another dataset"):
        mark_dataset(packed, original)
    mark_dataset(packed)
    assert (packed / "meta/info.new").read_text() == "x"
    with pytest.raises(SourceError, match=r"reads only v3.0"):
        mark_dataset(unpack(tmp_path, "lerobot_video_v21"))
    with pytest.raises(SourceError, match=r"info.json"):
        mark_dataset(tmp_path)
