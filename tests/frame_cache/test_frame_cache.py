"""`frame_cache=`: decoded frames on a local disk. It changes no batch, order, state or length."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import FrameCache, FrameTransform, SeqRecordMapDataset, SeqRecordPipe
from seqrecord.edit import delete_episodes, describe_features, rename_episodes, trim_episodes
from seqrecord.errors import ClipError, StorageError
from seqrecord.lerobot import LeRobotDataset
from seqrecord.store.storage.local import LocalStorage
from tests.kit.clip_data import digest, minimum_memory, no_leaks
from tests.kit.datasets import columns, write_dataset, written_once
from tests.kit.faults import CountingStorage, fail_calls
from tests.kit.frame_files import damage, frame_files, slots_start, used_bytes
from tests.kit.lerobot_stand_in import install
from tests.kit.lerobot_video_data import CAMERAS, unpack
from tests.kit.processes import killed_at
from tests.kit.video_file_data import pictures as video_pictures
from tests.kit.video_file_data import write_video
from tests.loader.test_resize import FRAMES, HALF, LENGTHS, pictures, write

FEATURES = ["image", "seg", "id"]
SIZES = {"image": (40, 56)}
CODECS = [
    "h264",
    *(pytest.param(codec, marks=pytest.mark.slow) for codec in ("jpeg:quality=95", "raw")),
]


path = written_once(write, params=CODECS)


video = written_once(write, "h264")


def plain(path: Any, **more: Any) -> SeqRecordPipe:
    """A pipe in so little memory that later epochs load all frames again."""
    options = {"clip_len": 3, "batch_size": 4, "seed": 2, "features": FEATURES, **more}
    sizes = {name: size for name, size in SIZES.items() if name in options["features"]}
    options = {"resize": sizes or None, "engine": seqrecord.EngineOptions(num_cursors=1), **options}
    make = partial(SeqRecordPipe, path, **options)
    return make(memory_limit=minimum_memory(make))


def cached(path: Any, cache: Path, limit: int | str = "1GiB", **more: Any) -> SeqRecordPipe:
    return plain(path, frame_cache=FrameCache(cache, limit), **more)


def outcome(loader: Any, epochs: int = 1) -> list[Any]:
    """The length, and of each batch the content and the state after it."""
    found: list[Any] = [len(loader)]
    for _ in range(epochs):
        found += [(digest(batch), loader.state_dict()) for batch in loader]
    return found


def decoded(loader: Any) -> int:
    """The frames that the last epoch decoded; of raw features too."""
    count: int = loader.stats()["frames_decoded"]
    return count


def test_cache_of_any_content_changes_nothing(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    expected = outcome(plain(path), 2)
    with no_leaks():
        filling = cached(path, cache)
        first = outcome(filling)
        assert decoded(filling) > 0
        assert first + outcome(filling)[1:] == expected
        assert filling.stats()["frames_from_cache"] >= FRAMES, "in the second epoch"
        del filling
    whole = frame_files(cache)
    assert whole

    def check(is_read: Callable[[int], bool] = lambda count: count > 0, **more: Any) -> None:
        loader = cached(path, cache, **more)
        assert outcome(loader) == (outcome(plain(path, **more)) if more else first)
        assert is_read(loader.stats()["frames_from_cache"])
        del loader

    check()
    if len(whole) > 1:
        whole[0].unlink()
        check()
    with caplog.at_level(logging.WARNING, "seqrecord"):
        for number, file in enumerate(frame_files(cache)):
            damage(file, slots_start(file) + 1)
            check()
            os.truncate(file, number)
            check(lambda count: count >= 0)
            check()
    of_memory = "memory_limit leaves no room"
    others = [one for one in caplog.messages if of_memory not in one]
    assert not others, "damaged frames are decoded"
    loader = cached(path, cache)
    batches = iter(loader)
    found = [digest(next(batches)) for _ in range(2)]
    for file in frame_files(cache):
        file.unlink(missing_ok=True)
    found += map(digest, batches)
    assert found == [batch for batch, _ in expected[1 : 1 + len(found)]]
    check(frame_transform=lambda frame: frame, is_read=lambda count: count == 0)
    check(device="cpu", is_read=lambda count: count >= 0)


def test_a_pipe_in_place_of_an_entry_is_not_waited_for(video: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    expected = outcome(cached(video, cache))
    for entry in frame_files(cache):
        entry.unlink()
        os.mkfifo(entry)
    assert outcome(cached(video, cache)) == expected


def test_every_loader_uses_it(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache: dict[str, Any] = {"frame_cache": FrameCache(tmp_path / "cache", "1GiB")}
    some: dict[str, Any] = {"clip_len": 3, "features": ["image"], "resize": {"image": HALF}}
    alone = [digest(clip) for clip in SeqRecordPipe(path, **some)]
    by_number = SeqRecordMapDataset(path, **some, memory_limit=0)
    expected = [digest(by_number[i]) for i in range(len(by_number))]
    filling = SeqRecordMapDataset(path, **some, **cache, memory_limit=0)
    assert [digest(filling[i]) for i in range(len(filling))] == expected
    assert filling.stats()["frames_decoded"] == FRAMES, "each frame once, by random access too"
    for loader in (
        SeqRecordPipe(path, **some, **cache),
        seqrecord.SeqRecordIterableDataset(path, **some, **cache),
        SeqRecordPipe(filling.dataset, **{**some, "resize": None}),
    ):
        assert [digest(clip) for clip in loader] == alone
        assert decoded(loader) == 0
        assert loader.stats()["bytes_read"] == 0, "no chunk is read"
    mixed = [
        seqrecord.SeqRecordMix({"a": SeqRecordPipe(path, **some, **more)}, batch_size=4)
        for more in ({}, cache)
    ]
    assert [digest(batch) for batch in mixed[0]] == [digest(batch) for batch in mixed[1]]
    assert mixed[1].stats()["frames_decoded"] == 0
    monkeypatch.setenv("SEQRECORD_FRAME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEQRECORD_FRAME_CACHE_LIMIT", "1GiB")
    pipe = SeqRecordPipe(path, **some)
    assert [digest(clip) for clip in DataLoader(pipe, batch_size=None)] == alone
    assert decoded(pipe) == 0


@pytest.mark.parametrize("windows", [None, {"image": [-1, 0, 1], "seg": [0]}])
def test_frames_that_lack_a_feature(windows: dict[str, Any] | None, tmp_path: Path) -> None:
    path, cache = tmp_path / "records", tmp_path / "cache"
    lacking = {2: "image", 4: "seg", 11: "image", 12: "seg"}
    writer = seqrecord.SeqRecordWriter(path, codecs="jpeg", chunk_frames=8)
    with writer, writer.episode("a") as episode:
        for i, image in enumerate(pictures(20, 0)):
            frame = {"image": image, "seg": image[::-1]}
            frame.pop(lacking.get(i, ""), None)
            episode.append(frame)
    some: dict[str, Any] = {"features": ["image", "seg"], "windows": windows}
    some["clip_len"] = 2 if windows is None else None
    expected = outcome(plain(path, **some))
    for count in range(2):
        loader = cached(path, cache, **some)
        assert outcome(loader) == expected
        assert (loader.stats()["frames_from_cache"] > 10) == bool(count)
        assert not count or decoded(loader) <= len(lacking)
    assert outcome(cached(path, cache, features=["seg"])) == outcome(plain(path, features=["seg"]))


def small(frame: dict[str, Any]) -> dict[str, Any]:
    image = frame["image"][::4, ::4].astype(np.float32)
    return {"image": image, "mean": image.mean() + frame["id"]}


def test_results_of_a_transform(video: Path, tmp_path: Path) -> None:
    """Under a key; they depend on the pages of all features."""
    path, cache = shutil.copytree(video, tmp_path / "records"), tmp_path / "cache"

    def of(key: str | None, clip_len: int = 3, make: Any = small) -> dict[str, Any]:
        transform = FrameTransform(make, deterministic=True, cache_key=key)
        options = {"features": ["image", "id"], "resize": None, "clip_len": clip_len}
        return {**options, "frame_transform": transform}

    expected = outcome(plain(path, **of(None)))
    some = cached(path, cache, **of("small", clip_len=1), stride=4)
    list(some)
    loader = cached(path, cache, **of("small"))
    assert outcome(loader) == expected
    assert decoded(loader) == FRAMES - decoded(some) > 0
    clips: Any = SeqRecordMapDataset(path, **of("small"), **cached_in(cache), memory_limit=0)
    by_number: Any = SeqRecordMapDataset(path, **of(None), memory_limit=0)
    for loader in (cached(path, cache, **of("small")), clips):
        if loader is clips:
            assert [digest(clips[i]) for i in range(5)] == [digest(by_number[i]) for i in range(5)]
        else:
            assert outcome(loader) == expected
        assert (decoded(loader), loader.stats()["bytes_read"]) == (0, 0)
    for options in (of(None), of("other")):
        loader = cached(path, cache, **options)
        assert outcome(loader) == expected
        assert decoded(loader) >= FRAMES
    for number, file in enumerate(frame_files(cache)):
        file.unlink() if number % 3 else damage(file, slots_start(file) + 1)
    assert outcome(cached(path, cache, **of("small"))) == expected
    trim_episodes(path, ["a"], slice(4, -2))
    assert outcome(cached(path, cache, **of("small"))) == outcome(plain(path, **of(None)))
    with pytest.raises(ClipError, match=r"cache_key.*deterministic=True"):
        FrameTransform(small, cache_key="small")


class InUnits:
    """A transform whose results depend on the unit of `id`."""

    factor = 1

    def with_schema(self, features: Any) -> InUnits:
        found = InUnits()
        found.factor = 1000 if features["id"].unit == "m" else 1
        return found

    def __call__(self, frame: dict[str, Any]) -> dict[str, Any]:
        return {"id": frame["id"] * self.factor}


def test_results_of_a_transform_depend_on_units(video: Path, tmp_path: Path) -> None:
    path = shutil.copytree(video, tmp_path / "records")
    transform = FrameTransform(InUnits(), deterministic=True, cache_key="units")
    options: dict[str, Any] = {"frame_transform": transform, "resize": None}
    list(cached(path, tmp_path / "cache", **options))
    describe_features(path, units={"id": "m"})
    assert outcome(cached(path, tmp_path / "cache", **options)) == outcome(plain(path, **options))


def cached_in(cache: Path) -> dict[str, Any]:
    return {"frame_cache": FrameCache(cache, "1GiB")}


def test_remote_chunks_are_not_read_again(video: Path, tmp_path: Path) -> None:
    """Nor read ahead."""
    expected = outcome(plain(video, features=["image"]))
    for count in (1, 0):
        remote: Any = CountingStorage(LocalStorage(video))
        loader = cached(remote, tmp_path / "cache", features=["image"])
        assert outcome(loader) == expected
        assert (loader.stats()["bytes_read"] > 0) == bool(count)


def test_frames_at_a_stride_are_kept(video: Path, tmp_path: Path) -> None:
    """And of other episodes; features may have other names."""
    cache, image = tmp_path / "cache", ["image"]
    few = cached(video, cache, clip_len=1, stride=5, features=image)
    list(few)
    assert decoded(few) == 3 + 2
    first = cached(video, cache, episodes=["a"], features=image)
    list(first)
    assert decoded(first) == LENGTHS["a"] - 3
    renamed: dict[str, Any] = {"rename": {"image": "eye"}, "resize": {"eye": SIZES["image"]}}
    whole = cached(video, cache, features=image, **renamed)
    assert outcome(whole) == outcome(plain(video, features=image, **renamed))
    assert decoded(whole) == LENGTHS["b"] - 2


def _trim(path: Path) -> None:
    trim_episodes(path, ["a"], slice(4, -2))


def _delete(path: Path) -> None:
    delete_episodes(path, ["a"])


def _append(path: Path) -> None:
    images = pictures(1, 7)
    depth, labels = images[..., 1].astype(np.uint16), images[..., 0] // 32
    frames = columns(image=images, depth=depth, seg=images, labels=labels, id=range(len(images)))
    write_dataset(path, {"c": frames}, mode="append")


EDITS: dict[str, tuple[Callable[[Path], object], int]] = {
    "trim": (_trim, 0),
    "rename": (lambda path: rename_episodes(path, {"a": "z"}), 0),
    "delete": (_delete, 0),
    "append": (_append, 1),
    "reindex": (lambda path: seqrecord.reindex(path), 0),
}


@pytest.mark.parametrize("name", EDITS)
def test_entries_survive_changes_of_the_dataset(name: str, video: Path, tmp_path: Path) -> None:
    path, cache = shutil.copytree(video, tmp_path / "records"), tmp_path / "cache"
    some: dict[str, Any] = {"features": ["image"], "clip_len": 1}
    list(cached(path, cache, **some))
    change, new = EDITS[name]
    change(path)
    loader = cached(path, cache, **some)
    assert outcome(loader) == outcome(plain(path, **some))
    assert decoded(loader) == new


def test_unchecked_frames_do_not_enter(tmp_path: Path) -> None:
    """Of a dataset that is opened with `verify=False`: other trainings trust the entries."""
    path, cache = write(tmp_path / "records", "raw"), tmp_path / "cache"
    damaged = shutil.copytree(path, tmp_path / "damaged")
    [file] = (damaged / "records").iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(pictures(LENGTHS["a"], 0)[0].tobytes())] ^= 128
    file.write_bytes(data)
    list(cached(seqrecord.open(damaged, verify=False), cache))
    assert outcome(cached(path, cache)) == outcome(plain(path))


def test_originals_in_place_are_checked(tmp_path: Path, home: Path) -> None:
    """A new index has entries of its own; a file replaced by one of equal size is noticed."""
    root, cache = tmp_path / "videos", tmp_path / "cache"
    root.mkdir()
    one = write_video(root / "a.mp4", video_pictures(12), options={"g": "4"})
    some: dict[str, Any] = {"resize": {"image": (24, 24)}, "features": ["image"], "clip_len": 2}
    for number in range(2):
        place = tmp_path / f"index{number}"
        seqrecord.convert(seqrecord.open_source(root), place, in_place=True, workers=1)
        for count in (12, 0):
            loader = cached(place, cache, **some)
            assert len(list(loader)) == len(loader)
            assert decoded(loader) == count
    loader = cached(tmp_path / "index1", cache, **some)
    data = one.read_bytes()
    one.unlink()
    one.write_bytes(data[:-1] + b"x")
    with pytest.raises(StorageError, match="changed") as caught:
        list(loader)
    assert caught.value.file == str(one)


def test_lerobot_class(
    tmp_path: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch)
    root, cache = unpack(tmp_path, "lerobot_video_v3"), tmp_path / "cache"
    options: dict[str, Any] = {"cache_limit": 0, "resize": (24, 32)}
    plain = LeRobotDataset("a/test", root, **options)
    for count in (2 * len(plain), 0):
        ours = LeRobotDataset("a/test", root, **options, frame_cache=FrameCache(cache, "1GiB"))
        for i in range(len(plain)):
            for name in CAMERAS:
                np.testing.assert_array_equal(ours[i][name], plain[i][name])
        assert (ours.clips.stats()["video_frames_decoded"] > 0) == (count > 0)


# Ranks and limits


def test_ranks_with_other_content(video: Path, tmp_path: Path) -> None:
    """Eight cold ranks of one node decode each frame about once."""
    cache = tmp_path / "cache"
    some: dict[str, Any] = {"features": ["image"], "clip_len": 2, "batch_size": 1}
    total = 0
    for rank in range(8):
        place: dict[str, Any] = {"rank": (rank, 8)}
        loader = cached(video, cache, **some, **place)
        assert outcome(loader) == outcome(plain(video, **some, **place))
        total += decoded(loader)
    assert total <= 1.1 * FRAMES
    assert len(frame_files(cache)) > 0


def test_a_full_cache_keeps_frames_in_use(video: Path, tmp_path: Path) -> None:
    """A dataset larger than the limit has a stable part; other trainings' frames make room."""
    cache, limit = tmp_path / "cache", 1 << 20
    loader = cached(video, cache, limit, resize=None)
    expected = outcome(plain(video, resize=None), 3)
    assert outcome(loader, 3) == expected
    frames = loader.stats()["frames_from_cache"]
    assert 0 < frames < 2 * FRAMES
    assert used_bytes(cache) <= limit
    before = frame_files(cache)
    other = cached(video, cache, limit, features=["image"])
    list(other)
    list(other)
    assert decoded(other) == 0, "the other training's frames were evicted"
    assert frame_files(cache) != before
    assert used_bytes(cache) <= limit


# Faults


@pytest.fixture
def broken_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Writes below `tmp_path / "cache"` fail with this error once the list has a number: the
    number of writes that still succeed."""
    left: list[int] = []
    works, inside = os.pwrite, str(tmp_path / "cache")

    def fails(fd: int, *args: Any) -> int:
        if left and str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(inside):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return works(fd, *args)

    monkeypatch.setattr(os, "pwrite", fails)
    return left


def test_a_full_disk_ends_filling(
    video: Path, tmp_path: Path, broken_disk: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    expected = outcome(plain(video), 2)
    for count in (0, 7, 11):
        broken_disk[:] = [count]
        caplog.clear()
        loader = cached(video, tmp_path / "cache")
        assert outcome(loader, 2) == expected
        messages = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert [text for text in messages if "the cache fails" in text] == messages
        assert len(messages) == 1, count
        assert "No space left" in messages[0]
    broken_disk.clear()
    assert outcome(cached(video, tmp_path / "cache"), 2) == expected


def test_other_folders(
    video: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of others and a file get one warning; a read-only cache is read."""
    expected = outcome(plain(video))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("mine")
    for name in ("foreign", "file"):
        caplog.clear()
        loader = cached(video, tmp_path / name)
        assert outcome(loader) == expected
        [record] = [one for one in caplog.records if one.levelname == "WARNING"]
        assert "the cache fails, and is not used for a while" in record.getMessage()
    assert {p.name for p in tmp_path.rglob("*")} == {"file", "foreign", "thesis.tex"}

    cache = tmp_path / "cache"
    some: dict[str, Any] = {"episodes": ["a"]}
    list(cached(video, cache, **some))
    before = {file: file.stat().st_mtime_ns for file in frame_files(cache)}
    caplog.clear()
    writing = os.O_RDWR | os.O_WRONLY
    fail_calls(monkeypatch, os, "open", errno.EROFS, below=cache, flags=writing)
    loader = cached(video, cache)
    assert outcome(loader) == expected
    assert loader.stats()["frames_from_cache"] > 0
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
    assert before.keys() == {*frame_files(cache)}


def test_killed_at_each_write(video: Path, tmp_path: Path, thorough: bool) -> None:
    some: dict[str, Any] = {"features": ["image"], "clip_len": 1}
    path, kills = video, 0
    expected = [digest(clip) for clip in plain(path, **some)]
    for step in range(0, 400, 1 if thorough else 41):
        cache = tmp_path / str(step)

        def fill(cache: Path = cache) -> None:
            clips = SeqRecordMapDataset(
                path, **some, resize=SIZES, memory_limit=0,
                frame_cache=FrameCache(cache, "1GiB"),
            )  # fmt: skip
            _ = [clips[i] for i in range(len(clips))]

        calls = [(os, "pwrite"), (os, "ftruncate"), (os, "posix_fallocate"), (Path, "mkdir")]
        was_killed = killed_at(step, fill, calls)
        found = cached(path, cache, **some)
        assert [digest(clip) for clip in found] == expected
        shutil.rmtree(cache)
        kills += was_killed
        if not was_killed:
            break
    assert kills > (20 if thorough else 0)


def test_power_loss(video: Path, tmp_path: Path) -> None:
    """Data and checksums are not synced: any of their blocks may survive without the others."""
    cache, some = tmp_path / "cache", dict[str, Any](features=["image"])
    expected = outcome(cached(video, cache, **some))
    written = {file: file.read_bytes() for file in frame_files(cache)}
    for seed in range(3):
        rng = np.random.default_rng(seed)
        for file in frame_files(cache):
            file.unlink()
        for file, data in written.items():
            blocks = np.frombuffer(data.ljust(-(-len(data) // 4096) * 4096, b"\0"), np.uint8)
            survives = rng.random((len(blocks) // 4096, 1)) < 0.8
            file.write_bytes((blocks.reshape(-1, 4096) * survives).tobytes()[: len(data)])
        loader = cached(video, cache, **some)
        assert outcome(loader) == expected
        assert loader.stats()["frames_from_cache"] < FRAMES


def test_errors(video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, limit, text in (
        (tmp_path, "much", "limit of a FrameCache"),
        (tmp_path, 1000, "too small"),
        ("az://a/b", "1GiB", "folder of a FrameCache"),
        (3, "1GiB", "folder of a FrameCache"),
    ):
        with pytest.raises(seqrecord.SeqRecordError, match=text):
            FrameCache(folder, limit)  # type: ignore[arg-type]
    monkeypatch.setenv("SEQRECORD_FRAME_CACHE", str(tmp_path / "c"))
    with pytest.raises(ClipError, match="SEQRECORD_FRAME_CACHE_LIMIT"):
        SeqRecordPipe(video, clip_len=1)


def test_a_line_names_the_remedies_of_repeated_decoding(
    video: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "seqrecord")

    def lines(loader: Any, epochs: int = 3) -> list[str]:
        caplog.clear()
        for _ in range(epochs):
            list(loader)
        texts = [one.getMessage() for one in caplog.records]
        return [text for text in texts if "decodes frames again" in text]

    [line] = lines(plain(video))
    assert "frame_cache=" in line
    limit = int(line.partition("memory_limit=")[2].split()[0])
    loader = plain(video)
    loader = SeqRecordPipe.from_options(video, replace(loader.options, memory_limit=limit))
    assert lines(loader) == []
    assert loader.stats()["features_resident"] == FEATURES
    assert lines(plain(video), 1) == []
    assert lines(plain(video, features=["id"])) == []
    assert lines(cached(video, tmp_path / "cache")) == []
    [line] = lines(cached(video, tmp_path / "small", 1 << 20, resize=None))
    assert "larger limit of frame_cache" in line
