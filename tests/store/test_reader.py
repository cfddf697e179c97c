from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import ClipError, ClipSpec, Dataset, NotFoundError, StorageError
from seqrecord.errors import ChecksumError, SchemaError
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import (
    EPISODES,
    SmallFrame,
    columns,
    damage,
    nth_chunk,
    small_frames,
    small_schema,
    write_dataset,
    write_small,
)
from tests.kit.faults import CountingStorage, FailAt, FailTransiently, FaultyStorage
from tests.store.big_index import write_big_index

# Some tests fork a process with threads on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

Written = dict[str, list[SmallFrame]]
KEY = "alpha/Easy/P000"


@pytest.fixture(scope="module")
def written() -> Written:
    """Frames of `small`."""
    return {key: small_frames(i, count) for i, (key, count) in enumerate(EPISODES.items())}


@pytest.fixture
def dataset(small: Path) -> Dataset:
    return seqrecord.open(small)


def same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want, strict=True)
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()  # NaN and -0.0 too


# Frames and slices


@pytest.mark.parametrize("verify", [True, False])
def test_frames_and_slices_are_as_written(small: Path, written: Written, verify: bool) -> None:
    with seqrecord.open(small, verify=verify) as dataset:
        for key, want in written.items():
            episode = dataset.episodes[key]
            assert len(episode) == len(want)
            for i in range(-len(want), len(want)):
                got = episode[i]
                assert list(got) == [name for name in dataset.features if name in want[i]]
                for name, array in got.items():
                    same(array, want[i][name])
    names = ["depth_left", "range", "photo", "pose", "step"]
    bounds: list[Any] = [(None,), (2, 9), (-4, None), (None, None, 3), (9, 2, -1), (None, None, -2)]
    with seqrecord.open(small, features=names, verify=verify) as dataset:
        for frames in (slice(*each) for each in (*bounds, (5, 5), (50, 60), (3, 1000), (4, 8))):
            for key, want in written.items():
                found = dataset.episodes[key][frames]
                assert list(found) == names
                for name in names:
                    expected = [frame[name] for frame in want[frames]]
                    assert isinstance(found[name], list) != dataset.features[name].is_fixed
                    for one, other in zip(found[name], expected, strict=True):
                        same(one, other)
                if not want[frames]:
                    assert isinstance(found["photo"], np.ndarray)
                    assert found["photo"].shape == (0, 32, 40, 3)


def test_missing_frames_and_features_are_errors(dataset: Dataset) -> None:
    episode = dataset.episodes[KEY]
    for outside in ([-1], [11]):
        with pytest.raises(IndexError):
            episode.read(outside)
    for frames in ([1.9], np.arange(11) > 4, ["1"]):  # a mask is no list of frames
        with pytest.raises(ClipError, match="frames are not numbers"):
            episode.read(frames)  # type: ignore[arg-type]
    assert len(episode.read([])["pose"]) == 0
    for frame in (11, -12, 10**30):
        with pytest.raises(IndexError, match="11 frames"):
            episode[frame]
    same(episode[np.int64(3)]["pose"], episode[3]["pose"])
    with pytest.raises(TypeError):
        episode["pose"]  # type: ignore[index]
    with pytest.raises(SchemaError, match="no such feature"):
        episode.read([0], features=["nothing"])
    with pytest.raises(SchemaError, match="no such feature"):
        dataset.select(["pose"]).episodes[KEY].present("flow")
    flow = dataset.select(["flow"]).episodes[KEY]
    with pytest.raises(ClipError, match="flow") as caught:
        flow[:]
    assert (caught.value.episode, caught.value.frame) == (KEY, 10)
    assert len(flow[:10]["flow"]) == 10
    for features in (["nothing"], [], ["pose", "pose"]):
        with pytest.raises(SchemaError):
            seqrecord.open(dataset.url, features=features)


# The dataset


def test_contents_of_a_dataset(dataset: Dataset) -> None:
    assert dict(zip(dataset.episodes, map(len, dataset.episodes.values()), strict=True)) == EPISODES
    assert dataset.num_frames == 17
    features = [
        [str(spec) for spec in each.values()] for each in (dataset.features, small_schema())
    ]
    assert features[0] == features[1]
    beta = dataset.episodes["beta/Hard/P000"]
    assert beta.metadata == {"difficulty": "Hard", "number": 2, "place": "Ürümqi"}
    assert "image_left: uint8 [32, 40, 3]" in repr(dataset)
    assert repr(beta) == "Episode('beta/Hard/P000', 1 frames)"
    with pytest.raises(KeyError):
        dataset.episodes["nothing"]
    assert dataset.find_episodes(None).tolist() == [0, 1, 2]
    assert dataset.find_episodes("alpha/*").tolist() == [0, 1]
    assert dataset.find_episodes(["beta/Hard/P000", KEY]).tolist() == [0, 2]
    assert dataset.find_episodes(lambda m: m["number"] > 0).tolist() == [1, 2]
    for nothing in ("gamma/*", ["alpha"], [], lambda m: False):
        with pytest.raises(ClipError):
            dataset.find_episodes(nothing)
    first = beta[0]["pose"]
    dataset.close()
    same(beta[0]["pose"], first)  # files are opened again


def test_an_append_is_seen_by_the_next_open(tmp_path: Path) -> None:
    write_small(tmp_path)
    storage = LocalStorage(tmp_path)  # one storage throughout, with old handles
    before = seqrecord.open(storage)
    again = pickle.dumps(before)
    write_small(tmp_path, episodes={"late/Easy/P000": 3}, mode="append")
    assert seqrecord.open(storage).num_frames == 20
    assert before.num_frames == 17
    assert len(before.select(["pose"]).episodes[KEY][0:10]["pose"]) == 10
    assert pickle.loads(again).num_frames == 17


# Functions accept a path or an open dataset, and refuse options without effect


def _exported(dataset: Any, **more: Any) -> object:
    with TemporaryDirectory() as folder:
        [made] = seqrecord.export.to_files(dataset, "a", folder, **more)
        return {file.name: file.read_bytes() for file in made.rglob("*") if file.is_file()}


def _streamed(dataset: Any, **more: Any) -> object:
    clips = seqrecord.SeqRecordIterableDataset(dataset, clip_len=4, **more)
    return [clip["start"] for clip in clips]


FUNCTIONS: dict[str, Callable[..., object]] = {
    "summarize": partial(seqrecord.summarize, clip=ClipSpec(4)),
    "verify": lambda dataset, **more: re.sub(
        r"; last.*", "", str(seqrecord.verify(dataset, **more))
    ),
    "view": lambda dataset, **more: seqrecord.view(dataset, "b", **more).get_label(),
    "export": _exported,
    "stream": _streamed,
    "map": lambda dataset, **more: len(seqrecord.SeqRecordMapDataset(dataset, clip_len=4, **more)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_and_an_open_dataset_give_the_same_result(name: str, tmp_path: Path) -> None:
    """Storage options with an open dataset are refused: pass them to `seqrecord.open`."""
    path = tmp_path / "records"
    frames = columns(x=np.arange(12, dtype=np.int32)[:, None], y=np.arange(12, dtype=np.uint8))
    write_dataset(path, {"a": frames, "b": frames})
    function, match = FUNCTIONS[name], r"cannot be combined with an open|is no argument"
    with seqrecord.open(path) as reader:
        assert function(reader) == function(path)
        with pytest.raises(ClipError, match=rf"storage_options ({match})"):
            function(reader, storage_options={"deadline": 3})
        assert int(reader.episodes["b"][3]["y"]) == 3  # still open


# Bytes read


def needed(dataset: Dataset, key: str, chunks: range) -> int:
    """Bytes of the pages of a dataset's features in some chunks of an episode."""
    reader = dataset.contents.chunks
    number = dataset.contents.index.positions[key]
    pages = [page for c in chunks for page in reader.pages(nth_chunk(dataset, number, c))]
    return sum(page.stop - page.start for page in pages)


def test_only_requested_pages_are_read(small: Path, written: Written) -> None:
    storage = CountingStorage(LocalStorage(small))
    for features in (["pose"], ["flow", "mask"], ["image_left", "step"], None):
        dataset = seqrecord.open(storage, features=features)
        storage.reset()
        dataset.episodes[KEY][0]
        want = needed(dataset, KEY, range(1))
        merged = 64 * (len(dataset.features) - 1) + 2 * 4  # and checksums of slices of raw pages
        assert want <= storage.bytes_read <= want + merged
        chosen = dataset.select(features or ["pose", "step", "photo"])
        want = needed(chosen, KEY, range(2))
        most = want + 2 * 64 * (len(chosen.features) - 1) + 2 * 2 * 4
        storage.reset()
        chosen.episodes[KEY][2:6]
        assert want <= storage.bytes_read <= most
        storage.reset()
        dataset.episodes[KEY].read(range(2, 6), features=list(chosen.features))
        assert want <= storage.bytes_read <= most
        assert not storage.sizes
        assert not storage.lists
    dataset = seqrecord.open(storage)
    storage.reset()
    dataset.episodes["alpha/Easy/P001"][0:4]
    ((path, ranges),) = storage.ranges.items()
    assert path.startswith("records/")
    assert len(ranges) == 1, "adjacent pages are one range"


def test_a_flipped_byte_is_an_error_only_where_it_is_read(tmp_path: Path) -> None:
    write_small(tmp_path)
    page = damage(tmp_path, "pose", 0, 1, at=3)
    file = tmp_path / page.chunk.path
    with seqrecord.open(tmp_path) as dataset:
        episode = dataset.episodes[KEY]
        episode[0]
        dataset.select(["image_left", "mask"]).episodes[KEY][4:8]
        with pytest.raises(ChecksumError) as e:
            episode[5]
        assert e.value.episode == "alpha/Easy/P000 (frames 4 to 7)"
        assert (e.value.file, e.value.offset, e.value.feature) == (str(file), page.start, "pose")


def test_faults_are_errors_and_never_wrong_data(small: Path, written: Written) -> None:
    storage = FaultyStorage(LocalStorage(small), FailTransiently(3, 0.3))
    dataset = None
    while dataset is None:
        with contextlib.suppress(StorageError):
            dataset = seqrecord.open(storage, features=["pose"])
    failed = 0
    for i in range(200):
        try:
            same(dataset.episodes[KEY][i % 11]["pose"], written[KEY][i % 11]["pose"])
        except StorageError:
            failed += 1
    assert 20 < failed < 120
    with pytest.raises(StorageError):
        seqrecord.open(FaultyStorage(LocalStorage(small), FailAt("read")))


def test_many_threads_read_one_dataset(dataset: Dataset, written: Written) -> None:
    barrier = threading.Barrier(6)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        barrier.wait()
        for key in rng.choice(list(EPISODES), 15).tolist():
            i = int(rng.integers(EPISODES[key]))
            for name, array in dataset.episodes[key][i].items():
                same(array, written[key][i][name])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(read, range(6)))


# A big index


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """800,000 chunks of 8 frames; the table is large enough to be memory-mapped."""
    folder = tmp_path_factory.mktemp("big")
    write_big_index(folder, episodes=10_000, frames=640, chunk_frames=8)
    os.sync()  # unwritten pages count as memory of processes that map them
    return folder


def test_opening_a_thousand_files_reads_manifest_and_index_only(big: Path) -> None:
    storage = CountingStorage(LocalStorage(big))
    start = time.process_time()  # CPU time, without waiting for a core
    dataset = seqrecord.open(storage)
    assert time.process_time() - start < 5  # mean 0.16 s, standard deviation 0.02 s
    assert set(storage.ranges) == {"manifest.json"} | {
        f"index/abcdef-{name}.arrow" for name in ("episodes", "chunks0", "gaps")
    }
    read = {path: sum(r.length for r in ranges) for path, ranges in storage.ranges.items()}
    assert read == {path: (big / path).stat().st_size for path in read}, "once, in blocks"
    assert max(storage.sizes.values()) == 1
    assert not storage.lists
    assert dataset.num_frames == 6_400_000
    assert len(dataset.contents.manifest.record_files) > 1000
    with pytest.raises(NotFoundError) as caught:
        dataset.episodes["env99/Easy/P009999"][0]
    last = dataset.contents.manifest.record_files[-1].path
    assert caught.value.file == str(big / last)


def _memory(address: int) -> tuple[str, int]:
    """The file mapped at an address, and the private dirty bytes of that mapping."""
    file, inside, dirty = "", False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            start, stop = (int(part, 16) for part in words[0].split("-"))
            inside = start <= address < stop
            file = (words[5] if len(words) > 5 else "") if inside else file
        elif inside and words[0] == "Private_Dirty:":
            dirty += int(words[1]) * 1024
    return file, dirty


def _mapped(dataset: Dataset) -> list[tuple[str, int]]:
    [group] = dataset.contents.index.groups
    assert int(group.page_length.sum()) > 0
    names = ("page_length", "page_crc32c", "offset", "file", "first_frame", "num_frames")
    return [_memory(getattr(group, name).ctypes.data) for name in names]


def _send_mapped(connection: Any, dataset: Dataset) -> None:
    connection.send(_mapped(dataset))


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_workers_share_the_mapped_index(big: Path, method: str) -> None:
    with seqrecord.open(big) as dataset:
        # A pickle contains the manifest, which may be replaced, but not the index.
        assert len(pickle.dumps(dataset)) < 300_000
        context: Any = multiprocessing.get_context(method)
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send_mapped, args=(sender, dataset))
        process.start()
        assert receiver.poll(60)
        for found in (_mapped(dataset), receiver.recv()):
            assert found == [(f"{big}/index/abcdef-chunks0.arrow", 0)] * 6
        process.join(60)
        assert process.exitcode == 0
        receiver.close()
        sender.close()


def test_html_for_notebooks_is_read_from_the_index(small: Path) -> None:
    storage = CountingStorage(LocalStorage(small))
    dataset = seqrecord.open(storage)
    storage.reset()
    html = dataset._repr_html_()
    for text in (dataset.url, "3: alpha/Easy/P000, alpha/Easy/P001, beta/Hard/P000", "17"):
        assert text in html
    rows = _cells(html)
    assert len(rows) == 1 + len(dataset.features)
    assert rows[1][:3] == ["image_left", "uint8", "32 x 40 x 3"]
    html = dataset.select(["flow", "step"]).episodes[KEY]._repr_html_()
    for text in (KEY, "frames: 11", "difficulty: Easy", "place: Ürümqi"):
        assert text in html
    assert [row[-1] for row in _cells(html)] == ["missing", "1", "0"]  # one frame lacks flow
    assert not storage.ranges
    assert not storage.sizes


def _cells(html: str) -> list[list[str]]:
    rows = re.sub(r"<(\w+)[^>]*>", r"<\1>", html).split("<tr>")[1:]
    return [re.findall(r"<t[dh]>([^<]*)<", row) for row in rows]


def test_html_for_notebooks_is_escaped_and_small(tmp_path: Path) -> None:
    key = "<script>alert('key')</script>"
    metadata: dict[str, Any] = {f"number {i}": i for i in range(1000)}
    first = {"<b>name</b>": '<img src="x" onerror="alert(1)">', "frames": "&amp;"}
    metadata = {**first, "long": "x" * 10**5, **metadata}
    write_dataset(tmp_path / "<i>records", {key: [{"x": np.zeros(2)}]}, metadata={key: metadata})
    with seqrecord.open(tmp_path / "<i>records") as dataset:
        for html in (dataset._repr_html_(), dataset.episodes[key]._repr_html_()):
            tags = set(re.findall(r"</?(\w+)[^>]*>", html))
            assert tags <= {"div", "strong", "table", "tr", "th", "td"}
            assert len(html) < 5000
    assert "&lt;img src=&quot;x&quot;" in html
    assert "&amp;amp;" in html
    assert html.count(">number ") == 17
    assert "983 more" in html
