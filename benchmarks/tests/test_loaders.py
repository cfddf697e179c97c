"""Every loader of the comparison yields the clips of the original files, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import rgbd
from benchmarks.tartanair.compare.check import check
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.compare.stores import STORES, Stores
from benchmarks.tartanair.compare.workloads import AUDIO, RGBD, TARTANAIR, WORKLOADS, Workload
from benchmarks.tartanair.generate import generate
from benchmarks.tartanair.loaders.base import Batch, Batches, Loader, Settings, prepared
from benchmarks.tartanair.loaders.raw_files import RawFilesDataset
from benchmarks.timing import run_job
from seqrecord import SeqRecordMapDataset, SeqRecordPipe, convert
from seqrecord.sources import TartanAirSource
from tests.kit.clip_data import names
from tests.kit.trees import REAL_DATA, make_frames, write_junk, write_v1, write_v2

# Other packages' loaders leave files open and warn.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = {
    workload.name: replace(workload.base, clip_len=clip_len, batch_size=4, shuffle_buffer=5)
    for workload, clip_len in ((TARTANAIR, 3), (AUDIO, 1), (RGBD, 3))
}
ROWS = [(workload, name) for workload in WORKLOADS.values() for name in workload.loaders]
CODECS = ["raw", "fast", "balanced", "small", "kept"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each workload, with recordings in `tree`."""
    work, episodes = tmp_path_factory.mktemp("work"), [7, 9, 2, 5]
    generate(work / TARTANAIR.name / "tree", episodes=episodes, height=16, width=24)
    rgbd.generate(work / RGBD.name / "tree", episodes, height=16, width=24)
    AUDIO.generate(work / AUDIO.name / "tree", episodes)
    return work


def problems(
    workload: Workload, loader: Loader, work: Path, settings: Settings, stores: Stores | None = None
) -> list[str]:
    root = work / workload.name / "tree"
    if loader.alone:
        job: dict[str, Any] = {"do": "check", "loader": loader.name, "workload": workload.name}
        job |= {"root": str(root), "work": str(root.parent)}
        job |= {"settings": asdict(settings), "epochs": 2}
        result = run_job("benchmarks.tartanair.compare.row", job, 60)
        return result["problems"] if "problems" in result else [result["error"]]
    recordings = workload.open(root, workload.base.features)
    folder = prepared(loader, recordings, root.parent, settings)
    if stores:
        folder = stores.place(settings.storage, folder)
    return check(loader, recordings, folder, settings, epochs=2)


@pytest.mark.parametrize(
    ("workload", "name"), [pytest.param(w, name, id=f"{w.name}-{name}") for w, name in ROWS]
)
@pytest.mark.parametrize(
    "changes",
    [
        {"shuffle": "off"},
        {"shuffle": "off", "stride": 2, "workers": 2},
        {"shuffle": "buffer", "workers": 0},
        {"shuffle": "buffer", "workers": 2},
        {"shuffle": "full", "workers": 0},
        {"shuffle": "full", "workers": 2},
        {"features": ("depth_left", "image_left")},
        {"shuffle": "full", "reused": True},
        {"shuffle": "full", "reused": True, "threads": 2},
        {"shuffle": "buffer", "reused": True},
    ],
)
def test_clips_equal_the_baseline(
    workload: Workload, name: str, work: Path, changes: dict[str, Any]
) -> None:
    loader, settings = workload.loaders[name], replace(SETTINGS[workload.name], **changes)
    if loader.lossy:
        settings = replace(settings, features=loader.lossy)
    if workload is AUDIO and changes.keys() & {"stride", "features"}:
        pytest.skip("a clip is a file with one feature")
    if reason := loader.missing() or loader.refuses(settings):
        pytest.skip(reason)
    found = problems(workload, loader, work, settings)
    if found and name == "torchaudio" and "does not load" in found[0]:
        pytest.skip(found[0])
    assert found == []


@pytest.mark.service
@pytest.mark.parametrize("storage", STORES)
def test_clips_from_storages(storage: str, work: Path, tmp_path: Path) -> None:
    with Stores(tmp_path) as stores:
        for workload in WORKLOADS.values():
            for system in workload.systems:
                if system.changes.get("storage") == storage:
                    loader = workload.loaders[system.loader]
                    if reason := loader.missing():
                        pytest.skip(reason)
                    settings = SETTINGS[workload.name]
                    settings = replace(settings, storage=storage, shuffle=loader.shuffles[-1])
                    try:
                        found = problems(workload, loader, work, settings, stores)
                    except RuntimeError as error:
                        pytest.skip(str(error))
                    assert found == [], system.label


def test_wrong_and_missing_values_are_reported(work: Path) -> None:
    def flip_bit(batch: Batch) -> None:
        batch["depth_left"].view(torch.uint8)[-1, -1, 0, 0] ^= 1

    def drop_clip(batch: Batch) -> None:
        for name in batch:
            batch[name] = batch[name][1:]

    def drop_mask(batch: Batch) -> None:
        del batch["mask"]

    class Changed:
        """Batches, each modified by `change`."""

        def __init__(self, batches: Batches, change: Callable[[Batch], object]) -> None:
            self.batches, self.change = batches, change

        def __iter__(self) -> Iterator[Batch]:
            for batch in self.batches:
                self.change(batch)
                yield batch

    memmap = TARTANAIR.loaders["memmap"]
    for change, message in (
        (flip_bit, "depth_left of"),
        (drop_clip, "clips missing"),
        (drop_mask, "a batch of"),
    ):

        def open_batches(
            folder: Path,
            clips: Sequence[Clip],
            settings: Settings,
            change: Callable[[Batch], object] = change,
        ) -> Batches:
            return Changed(memmap.open(folder, clips, settings), change)

        changed = replace(memmap, open=open_batches)
        found = problems(TARTANAIR, changed, work, SETTINGS[TARTANAIR.name])
        assert any(message in problem for problem in found)


# Records of a tree against the baseline, which opens the original files


@pytest.fixture(scope="module", params=["v1", "v2"])
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes, the second too short for a clip of 4; V1 rendered, V2 random."""
    root = tmp_path_factory.mktemp("baseline") / str(request.param)
    if request.param == "v1":
        generate(root, episodes=[9, 3], height=64, width=96)
    else:
        for number, count in enumerate((9, 3)):
            every = make_frames(number, count, v2=True)
            frames = [{k: v for k, v in f.items() if not k.startswith("imu")} for f in every]
            write_v2(root / "env" / "Data_easy" / f"P{number:03d}", frames)
    return root


def pack(root: Path, destination: Path, codec: str) -> Path:
    kept = codec == "kept"
    source = TartanAirSource(root, keep_encoded=kept)
    settings: dict[str, Any] = {"codecs": None if kept else codec, "chunk_frames": 4}
    convert(source, destination, workers=1, **settings)
    return destination


def same(clip: dict[str, Any], original: dict[str, Any]) -> None:
    assert (clip["episode"], clip["start"]) == (original["episode"], original["start"])
    assert set(clip) == set(original)
    for name, expected in original.items():
        if isinstance(expected, torch.Tensor):
            assert (clip[name].dtype, clip[name].shape) == (expected.dtype, expected.shape), name
            assert clip[name].numpy().tobytes() == expected.numpy().tobytes(), name


def compare(records: Path, root: Path, clip_len: int, **settings: Any) -> None:
    """One epoch of each kind of loader against the original files."""
    features = list(SeqRecordMapDataset(records, clip_len=1).dataset.features)
    baseline = RawFilesDataset(root, clip_len=clip_len, features=features, **settings)
    originals = {
        (c["episode"], c["start"]): c for c in map(baseline.__getitem__, range(len(baseline)))
    }
    assert originals
    for shuffle, batch_size in ((False, None), (False, 3), (True, None), (True, 3)):
        options = {"shuffle": shuffle, "batch_size": batch_size, **settings}
        seen = []
        for batch in SeqRecordPipe(records, clip_len=clip_len, **options):
            for i, name in enumerate(names(batch)):
                clip = batch if batch_size is None else {key: batch[key][i] for key in batch}
                same(clip, originals[name])
                seen.append(name)
        assert sorted(seen) == sorted(originals)
        assert shuffle or seen == list(originals)
    dataset = SeqRecordMapDataset(records, clip_len=clip_len, **settings)
    for number, original in enumerate(originals.values()):
        same(dataset[number], original)


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_a_tree(tree: Path, tmp_path: Path, codec: str) -> None:
    records = pack(tree, tmp_path / "records", codec)
    compare(records, tree, 4)
    compare(records, tree, 2, stride=2, dilation=2)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("version", "clip_len"), [("tartanair_v1", 1), ("tartanair_v2", 2)])
def test_records_of_real_data(tmp_path: Path, version: str, clip_len: int, codec: str) -> None:
    root = REAL_DATA / version
    if not root.is_dir():
        pytest.skip("the real samples are not on this machine")
    compare(pack(root, tmp_path / "records", codec), root, clip_len)


def test_clips_of_the_baseline(tmp_path: Path) -> None:
    """Canonical order; an episode without a feature has no clips."""
    write_v1(tmp_path / "b" / "b" / "Easy" / "P001", make_frames(1, 5), first_id=7)
    write_v1(tmp_path / "a" / "Hard" / "P000", make_frames(2, 4))
    write_junk(tmp_path)

    def places(root: Path, *features: str, **settings: Any) -> list[tuple[str, int]]:
        dataset = RawFilesDataset(root, features=list(features), **settings)
        samples = map(dataset.__getitem__, range(len(dataset)))
        return [(sample["episode"], sample["start"]) for sample in samples]

    for clip_len, stride, dilation, features, starts in (
        (2, 2, 1, ["image_left"], [0, 2]),
        (2, 1, 3, ["depth_left"], [0, 1]),
        (3, 1, 2, ["pose_left"], [0]),
        (2, 1, 1, ["image_left", "flow"], [0, 1, 2]),  # the last frame has no flow
        (5, 1, 1, ["mask"], []),
        (6, 1, 1, ["image_left"], []),
    ):
        settings = {"clip_len": clip_len, "stride": stride, "dilation": dilation}
        found = places(tmp_path / "b", *features, **settings)
        assert found == [("b/Easy/P001", start) for start in starts]
    frames = [{k: v for k, v in frame.items() if k != "seg_left"} for frame in make_frames(3, 5)]
    write_v1(tmp_path / "c" / "Easy" / "P000", frames)
    found = places(tmp_path, "seg_left", clip_len=4)
    assert {episode for episode, _ in found} == {"a/Hard/P000", "b/Easy/P001"}


@pytest.mark.parametrize("v2", [False, True])
def test_values_of_the_baseline(tmp_path: Path, v2: bool) -> None:
    frames, difficulty = make_frames(4, 6, v2=v2), "Data_easy" if v2 else "Easy"
    (write_v2 if v2 else write_v1)(tmp_path / "env" / difficulty / "P003", frames, first_id=2)
    dataset = RawFilesDataset(tmp_path, clip_len=2, dilation=2, stride=2)
    names = {name for name in frames[0] if not name.startswith("imu")}
    assert set(dataset.features) == names
    assert len(dataset) == 2
    expected = {name: np.stack([frames[2][name], frames[4][name]]) for name in names}
    place = {"episode": f"env/{difficulty}/P003", "start": 2}
    same(dataset[1], {**place, **{name: torch.from_numpy(v) for name, v in expected.items()}})
