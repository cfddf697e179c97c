"""Raw frames that are copied from mapped record files: values, checks, damage, maps."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import CenterCrop, SeqRecordMapDataset, SeqRecordMix, SeqRecordPipe
from seqrecord.errors import ChecksumError, ClipError, SeqRecordError, StorageError
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.clip_data import digests, no_leaks
from tests.kit.processes import in_fork

LENGTHS = (11, 3, 24, 1, 7)
GAPS = {(0, 10), (1, 2), (2, 5), (2, 23)}  # frames without the flow
FEATURES = ["image", "depth", "flow", "is_static", "pose"]


def frame(episode: int, number: int) -> dict[str, Any]:
    """Frames of odd and even sizes; the pose is small, and bools are not mapped."""
    rng = np.random.default_rng([episode, number])
    values = {
        "image": rng.integers(0, 256, (75, 75, 3), np.uint8),  # 16,875 bytes
        "depth": rng.random((64, 65), np.float32),
        "flow": rng.random((50, 60, 2), np.float32).astype(np.float32),
        "is_static": rng.random((130, 130)) < 0.5,
        "pose": rng.random(7, np.float32),
    }
    if (episode, number) in GAPS:
        del values["flow"]
    return values


def write(path: Path, **options: Any) -> Path:
    with seqrecord.SeqRecordWriter(path, codecs="raw", **options) as writer:
        for episode, length in enumerate(LENGTHS):
            with writer.episode(f"e{episode}") as recording:
                for number in range(length):
                    recording.append(frame(episode, number))
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several record files, with chunks of a few frames."""
    folder = tmp_path_factory.mktemp("mapped") / "records"
    return write(folder, max_file_size=700_000, chunk_frames=4)


def both(path: Path) -> list[Any]:
    """The dataset with mapped frames, and without."""
    return [seqrecord.open(path, verify=verify) for verify in (True, "always")]


def reads(loader: Any) -> int:
    return int(loader.stats()["bytes_read"])


CASES: dict[str, dict[str, Any]] = {
    "clips": {"clip_len": 3, "batch_size": 4, "features": ["image", "depth", "pose"]},
    "without gaps": {"clip_len": 2, "batch_size": 5, "features": ["image", "flow"]},
    "all features": {"clip_len": 2, "batch_size": 3, "stride": 2, "features": FEATURES},
    "single clips": {"clip_len": 2, "features": ["depth"]},
    "windows": {
        "windows": {"image": (-4, 0, 1), "depth": range(3), "pose": range(-2, 3)},
        "pad": "edge",
        "batch_size": 4,
    },
    "latest": {
        "windows": {"image": range(1), "flow": seqrecord.Latest([0])},
        "batch_size": 4,
    },
    "reverse": {"clip_len": 3, "batch_size": 4, "features": ["image"], "dilation": 2},
    "crop": {
        "clip_len": 2,
        "batch_size": 4,
        "features": ["image", "pose"],
        "clip_transform": [seqrecord.RandomCrop((40, 50)), seqrecord.HorizontalFlip()],
    },
    "function": {
        "clip_len": 2,
        "batch_size": 4,
        "features": ["image", "pose"],
        "frame_transform": lambda frame: {"half": frame["image"] // 2, "pose": frame["pose"]},
    },
    "resized": {
        "clip_len": 2,
        "batch_size": 4,
        "features": ["image", "depth"],
        "resize": {"image": (32, 32)},
    },
    "repeated samples": {
        "clip_len": 2,
        "batch_size": 4,
        "features": ["image"],
        "samples": {"episode": ["e2", "e0", "e2", "e2"], "start": [3, 1, 3, 20]},
    },
    "frames of a list": {
        "features": ["image", "pose"],
        "batch_size": 2,
        "samples": {"episode": ["e2", "e0", "e2"], "frames": [[3, 20, 4], [1, 1, 9], [0, 1, 2]]},
    },
    "small memory": {
        "clip_len": 2,
        "batch_size": 2,
        "features": ["image", "depth"],
        "memory_limit": 1_200_000,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_orders_equal(path: Path, case: str) -> None:
    """Two epochs, and a resume in the middle of the second."""
    mapped, copied = (SeqRecordPipe(data, **CASES[case], seed=3) for data in both(path))
    wanted = [digests(copied) for _ in range(3)]
    assert [digests(mapped) for _ in range(2)] == wanted[:2]
    batches = iter(mapped)
    begun = digests(next(batches) for _ in range(len(wanted[2]) // 2))
    state = mapped.state_dict()
    del batches
    resumed = SeqRecordPipe(seqrecord.open(path), **CASES[case], seed=3)
    resumed.load_state_dict(state)
    assert begun + digests(resumed) == wanted[2]
    assert mapped.stats()["memory_limit"] == copied.stats()["memory_limit"]


def test_the_second_epoch_reads_nothing(path: Path) -> None:
    settings: Any = {"clip_len": 2, "batch_size": 4, "features": ["image", "depth", "pose"]}
    mapped, copied = (SeqRecordPipe(data, **settings) for data in both(path))
    for number in range(2):
        digests(mapped)
        digests(copied)
        assert (reads(mapped) > 0) == (number == 0)
        assert reads(copied) > 0
        assert mapped.stats()["frames_mapped"] == 2 * 2 * mapped.stats()["clips"]
        assert copied.stats()["frames_mapped"] == 0
    assert mapped.stats()["peak_buffer_bytes"] < copied.stats()["peak_buffer_bytes"] / 10
    assert mapped.stats()["planned_bytes"] == copied.stats()["planned_bytes"]
    batch = 4 * 2 * (75 * 75 * 3 + 64 * 65 * 4 + 7 * 4)
    assert batch < mapped.stats()["private_bytes"]
    copied_bytes = sum(LENGTHS) * (75 * 75 * 3 + 64 * 65 * 4) / 2  # not all have an image
    assert mapped.stats()["private_bytes"] + copied_bytes < copied.stats()["private_bytes"]


@pytest.mark.parametrize("verify", [True, False])
def test_without_checksums(path: Path, tmp_path: Path, verify: bool) -> None:
    damaged = write(tmp_path / "records")
    damage(damaged, 100_000)
    pipe = SeqRecordPipe(seqrecord.open(damaged, verify=verify), clip_len=1, features=["image"])
    if verify:
        with pytest.raises(ChecksumError, match="image"):
            list(pipe)
    else:
        assert len(list(pipe)) == sum(LENGTHS)


def record_file(path: Path) -> Path:
    [file] = (path / "records").glob("*.seqrec")
    return file


def damage(path: Path, offset: int) -> None:
    with record_file(path).open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 255]))


def pipe_of(path: Path) -> SeqRecordPipe:
    return SeqRecordPipe(path, clip_len=1, batch_size=2, features=["image"])


def test_a_file_that_is_shortened_while_mapped(tmp_path: Path) -> None:
    """Before the epoch, during it, and after it: an error, never a signal."""
    path = write(tmp_path / "records")
    size = record_file(path).stat().st_size
    pipe = pipe_of(path)
    digests(pipe)
    os.truncate(record_file(path), size // 2)
    with pytest.raises(StorageError, match="ended early") as caught:
        digests(pipe)
    assert caught.value.file == str(record_file(path))
    with pytest.raises(StorageError, match="ended early") as caught:
        digests(pipe_of(path))
    assert caught.value.episode is not None


def test_a_file_that_is_shortened_during_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody copies: behind the check of a batch, the copy would end the process."""
    path = write(tmp_path / "records")
    pipe = pipe_of(path)
    digests(pipe)
    file = str(record_file(path))
    are_taken, numbers, stat = threading.Event(), itertools.count(), os.stat

    def shortened(name: Any, **options: Any) -> os.stat_result:
        # Call 0 is for the epoch, then one for each batch.
        if name == file and next(numbers) == 3:
            assert are_taken.wait(60)  # the copies of both batches are made
            os.truncate(name, 4096)
        return stat(name, **options)

    monkeypatch.setattr(os, "stat", shortened)
    batches = iter(pipe)
    next(batches), next(batches)
    are_taken.set()
    with pytest.raises(StorageError, match="ended early"):
        next(batches)


def test_damage_after_an_epoch_is_found_in_the_next(tmp_path: Path) -> None:
    path = write(tmp_path / "records")
    pipe = pipe_of(path)
    digests(pipe)
    damage(path, 100_000)
    with pytest.raises(ChecksumError, match="image"):
        digests(pipe)


def keeping_times(path: Path, change: Callable[[], object]) -> None:
    """A change of a record file that keeps its time of modification, as `cp -p` does."""
    status = record_file(path).stat()
    time.sleep(0.02)  # times have the resolution of the kernel's clock
    change()
    os.utime(record_file(path), ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("feature", ["image", "depth"])
@pytest.mark.parametrize("map_style", [False, True])
def test_damage_with_the_same_time_of_modification(
    tmp_path: Path, feature: str, map_style: bool
) -> None:
    """In each group of the file, in the next epoch or call."""
    path = write(tmp_path / "records", features={"depth": {"group": 1}})
    features = ["image", "depth"]
    assert len({seqrecord.open(path).features[name].group for name in features}) == 2
    options: dict[str, Any] = {"clip_len": 1, "features": features}

    def epoch() -> None:
        if map_style:
            clips.__getitems__(range(len(clips)))
        else:
            digests(pipe)

    clips = SeqRecordMapDataset(path, memory_limit=0, **options)
    pipe = SeqRecordPipe(path, batch_size=2, **options)
    for _ in range(2):
        epoch()
    data = record_file(path).read_bytes()
    offset = data.index(frame(2, 10)[feature].tobytes())
    keeping_times(path, lambda: damage(path, offset + 1000))
    with pytest.raises(ChecksumError, match=feature):
        epoch()
    keeping_times(path, lambda: damage(path, offset + 1000))  # as it was
    epoch()


@pytest.mark.parametrize("is_first", [True, False])
def test_damage_in_the_middle_of_an_epoch(tmp_path: Path, is_first: bool) -> None:
    """Also of frames that were checked, and whose batch was not copied yet."""
    path = write(tmp_path / "records")
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=2, features=["image"], shuffle=False)
    if not is_first:
        digests(pipe)
    batches = iter(pipe)
    next(batches)
    offset = record_file(path).read_bytes().index(frame(4, 5)["image"].tobytes())
    keeping_times(path, lambda: damage(path, offset))
    with pytest.raises(ChecksumError, match="image"):
        list(batches)


CHANGES: dict[str, Callable[[Path], object]] = {
    "linked": lambda file: file.with_name("link").hardlink_to(file),
    "permissions": lambda file: file.chmod(0o444),
    "touched": lambda file: file.touch(),
    "written again": lambda file: file.write_bytes(file.read_bytes()),
    "replaced": lambda file: (
        shutil.copy(file, file.with_name("x")) and file.with_name("x").replace(file)
    ),
    "renamed": lambda file: file.rename(file.with_name("other")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_that_keep_the_bytes(tmp_path: Path, name: str) -> None:
    """Checksums are compared once more, and that is all."""
    path = write(tmp_path / "records")
    pipe, copied = pipe_of(path), pipe_of(both(path)[1])
    wanted = [digests(copied) for _ in range(4)]
    assert [digests(pipe) for _ in range(2)] == wanted[:2]
    assert reads(pipe) == 0
    time.sleep(0.02)
    CHANGES[name](record_file(path))
    assert digests(pipe) == wanted[2]
    assert reads(pipe) >= sum(LENGTHS) * 75 * 75 * 3
    assert digests(pipe) == wanted[3]
    # Nobody can ask a file without its name for changes.
    assert (reads(pipe) > 0) == (name in ("replaced", "renamed"))


def test_a_file_that_is_renamed_and_written(tmp_path: Path) -> None:
    """What is mapped has another name, under which somebody writes."""
    path = write(tmp_path / "records")
    pipe = pipe_of(path)
    digests(pipe)
    record_file(path).rename(tmp_path / "other.seqrec")
    digests(pipe)
    with (tmp_path / "other.seqrec").open("r+b") as file:
        file.seek(100_000)
        file.write(b"?")
    with pytest.raises(SeqRecordError):
        digests(pipe)


def test_marks_of_a_parent_before_a_change(tmp_path: Path) -> None:
    """A fork shares marks of frames in files that it maps later, when somebody has written."""
    path = write(tmp_path / "records", max_file_size=700_000, chunk_frames=4)
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=2, features=["image"], shuffle=False)
    next(iter(pipe))  # maps the first file
    [last] = [
        file
        for file in (path / "records").glob("*.seqrec")
        if frame(4, 5)["image"].tobytes() in file.read_bytes()
    ]
    assert str(last) not in Path("/proc/self/maps").read_text()
    forked, changed = multiprocessing.Event(), multiprocessing.Event()
    outcomes = list[str]()

    def child() -> str:
        forked.set()
        assert changed.wait(60)
        try:
            digests(pipe)
        except ChecksumError:
            return "found"
        return "not found"

    thread = threading.Thread(target=lambda: outcomes.append(in_fork(child)))
    thread.start()
    assert forked.wait(60)
    digests(pipe)
    data = bytearray(last.read_bytes())
    data[data.index(frame(4, 5)["image"].tobytes())] ^= 255
    last.write_bytes(data)
    changed.set()
    thread.join(60)
    assert outcomes == ["found"]


@pytest.mark.parametrize("map_style", [False, True])
def test_a_batch_asks_each_file_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, map_style: bool
) -> None:
    """Frames cost no system call: an epoch asks each file, and so does a batch."""
    options: dict[str, Any] = {"clip_len": 2, "features": ["image", "depth"]}
    clips = SeqRecordMapDataset(path, **options)
    pipe = SeqRecordPipe(path, batch_size=8, **options)

    def num_batches() -> int:
        if map_style:
            clips.__getitems__(range(0, 40, 5))
        return 1 if map_style else len(digests(pipe))

    num_batches()
    asked, stat = list[str](), os.stat

    def counted(name: Any, **options: Any) -> os.stat_result:
        asked.append(str(name))
        return stat(name, **options)

    monkeypatch.setattr(os, "stat", counted)
    count = num_batches()
    files = len([*(path / "records").glob("*.seqrec")])
    assert files > 2
    asked = [name for name in asked if name.endswith(".seqrec")]
    assert 0 < len(asked) <= files * (count + 1)


def test_a_file_that_is_replaced_or_deleted_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "records")
    pipe = pipe_of(path)
    digests(pipe)
    wanted = digests(pipe)
    record_file(path).unlink()
    pipe.set_epoch(1)
    assert digests(pipe) == wanted


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers(path: Path, context: str) -> None:
    settings: Any = {"clip_len": 2, "batch_size": 4, "features": ["image", "flow", "pose"]}
    mapped, copied = (SeqRecordPipe(data, **settings) for data in both(path))
    if context == "fork":
        digests(mapped)  # maps and marks that workers inherit
        mapped.set_epoch(0)
    first, second = (
        digests(DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context=start))
        for pipe, start in ((mapped, context), (copied, "fork"))
    )
    assert first == second


def test_a_fork_after_marks_of_its_parent(path: Path) -> None:
    """A fork has marks of frames that its parent checks later, but not the maps of their files."""
    pipe = SeqRecordPipe(path, clip_len=1, batch_size=2, features=["image"], shuffle=False)
    batches = iter(pipe)
    next(batches)
    assert in_fork(lambda: digests(pipe)) == digests(
        SeqRecordPipe(path, clip_len=1, batch_size=2, features=["image"], shuffle=False)
    )
    del batches


@pytest.mark.parametrize("map_style", [False, True])
def test_encoded_features_beside_mapped_ones(tmp_path: Path, map_style: bool) -> None:
    """Loads of a chunk read and decode its encoded features, and leave the mapped ones out."""
    folder, count = tmp_path / "records", 96
    codecs: Any = {"image": "raw", "depth": "fast", "flow": "raw"}
    writer = seqrecord.SeqRecordWriter(folder, codecs=codecs, chunk_frames=4)
    with writer, writer.episode("e") as recording:
        for number in range(count):
            values = frame(2, number % 24)
            recording.append({name: values[name] for name in codecs if name in values})
    alone = seqrecord.open(folder).select(["depth"])
    windows: Any = {"image": [0], "depth": [0], "flow": seqrecord.Latest([0])}
    limit = 1_200_000  # epochs decode again
    loaders: list[Any]
    whole: dict[str, Any]
    if map_style:
        # Without the flow: features with another window count frames of their own.
        whole = {"clip_len": 1, "features": ["image", "depth"], "memory_limit": 0}
        loaders = [SeqRecordMapDataset(data, **whole) for data in both(folder)]
        loaders.append(SeqRecordMapDataset(alone, clip_len=1, memory_limit=0))
    else:
        whole = {"windows": windows, "batch_size": 2, "memory_limit": limit}
        loaders = [SeqRecordPipe(data, **whole) for data in both(folder)]
        loaders.append(SeqRecordPipe(alone, clip_len=1, batch_size=2, memory_limit=limit // 2))
    read = np.zeros((2, 3), np.int64)
    for epoch in range(2):
        for place, loader in enumerate(loaders):
            before = reads(loader) if map_style else 0
            clips = [loader[number] for number in range(count)] if map_style else list(loader)
            assert len(clips) == (count if map_style else count // 2)
            read[epoch, place] = reads(loader) - before
            assert loader.stats()["frames_decoded"] == count * (epoch + 1 if map_style else 1)
            if place < 2:
                assert (loader.stats()["frames_mapped"] > 0) == (place == 0)
    mapped, copied, of_depth = read[1]
    assert (
        0.9 * of_depth <= mapped < 1.5 * of_depth
    )  # plans of little memory may read a chunk again
    assert copied - mapped >= 0.9 * count * 75 * 75 * 3
    if not map_style:
        assert digests(loaders[0]) == digests(loaders[1])
        # With memory for chunks that are read ahead: each page is checked or read, not both.
        pipes = [SeqRecordPipe(data, windows=windows, batch_size=2) for data in both(folder)]
        assert digests(pipes[0]) == digests(pipes[1])
        assert reads(pipes[0]) <= reads(pipes[1])


def test_map_style(path: Path) -> None:
    for case in ("clips", "all features", "windows", "frames of a list"):
        settings = {n: v for n, v in CASES[case].items() if n not in ("batch_size", "stride")}
        mapped, copied = (SeqRecordMapDataset(data, **settings) for data in both(path))
        for numbers in ([0], [1, 0, 1], list(range(len(mapped)))):
            pairs = zip(mapped.__getitems__(numbers), copied.__getitems__(numbers), strict=True)
            for clip, wanted in pairs:
                assert clip.keys() == wanted.keys()
                for name, value in clip.items():
                    assert np.array_equal(value, wanted[name]), name
        read = mapped.stats()["bytes_read"]
        mapped.__getitems__(list(range(len(mapped))))
        if case == "clips":  # the others have a bool
            assert mapped.stats()["bytes_read"] == read
        assert mapped.stats()["frames_mapped"] > 0 == copied.stats()["frames_mapped"]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_map_style(path: Path, context: str) -> None:
    settings: Any = {"clip_len": 2, "features": ["image", "flow", "pose"]}
    mapped, copied = (SeqRecordMapDataset(data, **settings) for data in both(path))
    wanted = [copied[number] for number in range(len(copied))]
    _ = mapped[0]  # maps and marks that forks inherit
    loader = DataLoader(
        mapped, batch_size=None, num_workers=2, multiprocessing_context=context, shuffle=False
    )
    for clip, expected in zip(loader, wanted, strict=True):
        assert all(np.array_equal(clip[name], expected[name]) for name in settings["features"])


def test_map_style_with_functions_and_crops(path: Path) -> None:
    settings = {n: v for n, v in CASES["crop"].items() if n != "batch_size"}
    mapped, copied = (SeqRecordMapDataset(data, **settings) for data in both(path))
    clips = []
    for dataset in (mapped, copied):
        torch.manual_seed(3)
        clips.append(dataset.__getitems__([4, 1, 1, 30]))
    for clip, expected in zip(*clips, strict=True):
        assert all(np.array_equal(clip[name], expected[name]) for name in ("image", "pose"))


def test_damage_and_shorter_files_in_map_style(tmp_path: Path) -> None:
    path = write(tmp_path / "records")
    damage(path, 100_000)
    with pytest.raises(ChecksumError, match="image"):
        SeqRecordMapDataset(path, clip_len=1, features=["image"]).__getitems__(range(46))
    other = write(tmp_path / "other")
    dataset = SeqRecordMapDataset(other, clip_len=1, features=["image"])
    _ = dataset[0]
    os.truncate(record_file(other), 4096)
    with pytest.raises(StorageError, match="ended early"):
        _ = dataset[0]
    with pytest.raises(StorageError, match="ended early"):
        _ = dataset[30]


def test_a_mix(path: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "records")
    settings: Any = {"clip_len": 2, "features": ["image", "pose"]}
    mixes = [
        SeqRecordMix(
            {name: SeqRecordPipe(data, **settings) for name, data in zip("ab", pair, strict=True)},
            weights={"a": 2, "b": 1},
            batch_size=5,
        )
        for pair in zip(both(path), both(other), strict=True)
    ]
    for _ in range(2):
        mapped, copied = map(digests, mixes)
        assert mapped == copied


def maps_below(folder: Path) -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count(str(folder))


class Inverted(LocalStorage):
    """A storage whose record files have inverted bytes on the disk."""

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        super().read_ranges(path, ranges, buffers)
        if path.endswith(".seqrec"):
            for buffer in buffers:
                array = np.frombuffer(buffer, np.uint8)
                np.invert(array, out=array)


@pytest.mark.parametrize("verify", [True, False])
def test_a_storage_that_reads_in_its_own_way_reads_frames(tmp_path: Path, verify: bool) -> None:
    path = write(tmp_path / "records")
    wanted = digests(pipe_of(path))
    data = np.fromfile(record_file(path), np.uint8)
    np.invert(data).tofile(record_file(path))
    dataset = seqrecord.open(Inverted(path), verify=verify)
    settings: Any = {"clip_len": 1, "batch_size": 2, "features": ["image"]}
    assert digests(SeqRecordPipe(dataset, **settings)) == wanted


def address_ranges(text: str) -> list[range]:
    """Ranges of this process's addresses whose lines in the table of maps contain a text."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    bounds = [line.split()[0].split("-") for line in lines if text in line]
    return [range(int(start, 16), int(stop, 16)) for start, stop in bounds]


def test_no_map_and_no_descriptor_remains(path: Path) -> None:
    maps_below(path)  # ends those of other tests
    with no_leaks():
        pipe = SeqRecordPipe(path, clip_len=2, batch_size=4, features=["image", "depth"])
        batch = next(iter(pipe))
        mapped_ranges = address_ranges(str(path / "records"))
        assert mapped_ranges
        assert list(map(str, open_files(path))) == []
        del pipe
    assert maps_below(path / "records") == 0
    reserved_ranges = address_ranges(" ---p ")  # what `unmap` leaves
    assert not [r for r in reserved_ranges for m in mapped_ranges if m.start in r]
    assert torch.is_tensor(batch["image"])


def open_files(folder: Path) -> Iterator[Path]:
    for link in Path("/proc/self/fd").iterdir():
        target = Path(os.path.realpath(link))
        if target.is_relative_to(folder / "records"):
            yield target


def test_torch_keeps_its_number_of_threads(path: Path) -> None:
    count = torch.get_num_threads()
    digests(pipe_of(path))
    assert torch.get_num_threads() == count


def test_functions_cannot_write_to_files(path: Path) -> None:
    def write_to(clip: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        clip["image"][:] = 0
        return clip

    settings: Any = {"clip_len": 1, "batch_size": 2, "features": ["image"]}
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    pipe = SeqRecordPipe(path, **settings, clip_transform=write_to)
    assert not any(batch["image"].any() for _ in range(2) for batch in pipe)
    assert {file: file.read_bytes() for file in files} == files
    assert all(batch["image"].any() for batch in SeqRecordPipe(path, **settings))


@pytest.mark.parametrize("options", [{}, {"memory_limit": "300KiB"}, {"verify": "always"}], ids=str)
@pytest.mark.parametrize("is_cropped", [False, True])
def test_functions_may_write_by_torch(
    path: Path, options: dict[str, Any], is_cropped: bool
) -> None:
    """Frames in memory and in files remain."""

    def negated(clip: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        torch.from_numpy(clip["image"]).bitwise_not_()
        return clip

    settings: Any = {"clip_len": 1, "batch_size": 2, "features": ["image"], "shuffle": False}
    verify = options.get("verify", True)
    loader = {n: value for n, value in options.items() if n != "verify"}
    steps = [CenterCrop(64)] if is_cropped else []
    with seqrecord.open(path, verify=verify) as dataset:
        expected = [
            ~batch["image"]
            for batch in SeqRecordPipe(dataset, **settings, clip_transform=steps or None)
        ]
        pipe = SeqRecordPipe(dataset, **settings, **loader, clip_transform=[*steps, negated])
        for _ in range(2):
            assert all(map(torch.equal, [batch["image"] for batch in pipe], expected))
        clips = SeqRecordMapDataset(
            dataset, clip_len=1, features=["image"], clip_transform=[*steps, negated]
        )
        whole = torch.cat(expected)
        for _ in range(2):
            assert all(torch.equal(clips[n]["image"], whole[n]) for n in range(len(clips)))


def test_an_unknown_value_of_verify(path: Path) -> None:
    with pytest.raises(ClipError, match=r'"always".*never'):
        seqrecord.open(path, verify="never")  # type: ignore[arg-type]
