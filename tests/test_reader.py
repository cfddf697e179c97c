from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import ClipError, Dataset, NotFoundError, StorageError
from seqrecord.errors import ChecksumError, SchemaError
from seqrecord.storage import LocalStorage
from tests.big_index import write_big_index
from tests.datasets import EPISODES, SmallFrame, damage, nth_chunk, small_schema, write_small
from tests.storage_doubles import CountingStorage, FailAt, FailTransiently, FaultyStorage

# Forking with threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

Written = dict[str, list[SmallFrame]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    folder = tmp_path_factory.mktemp("small")
    return folder, write_small(folder)


@pytest.fixture
def dataset(written: tuple[Path, Written]) -> Iterator[Dataset]:
    with seqrecord.open(written[0]) as dataset:
        yield dataset


def same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want, strict=True)
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()  # NaN and -0.0 too


# Frames and slices


@pytest.mark.parametrize("verify", [True, False])
def test_every_frame_is_as_it_was_written(written: tuple[Path, Written], verify: bool) -> None:
    folder, frames = written
    with seqrecord.open(folder, verify=verify) as dataset:
        for key, want in frames.items():
            episode = dataset.episodes[key]
            assert len(episode) == len(want)
            for i in range(-len(want), len(want)):
                got = episode[i]
                assert list(got) == [name for name in dataset.features if name in want[i]]
                for name, array in got.items():
                    same(array, want[i][name])


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    "frames",
    [
        slice(None),
        slice(2, 9),
        slice(-4, None),
        slice(None, None, 3),
        slice(9, 2, -1),
        slice(None, None, -2),
        slice(5, 5),
        slice(50, 60),
        slice(3, 1000),
        slice(4, 8),
    ],
)
def test_slices_are_those_of_a_list(
    written: tuple[Path, Written], frames: slice, verify: bool
) -> None:
    folder, every = written
    names = ["depth_left", "range", "photo", "pose", "step"]
    with seqrecord.open(folder, features=names, verify=verify) as dataset:
        for key, want in every.items():
            got = dataset.episodes[key][frames]
            assert list(got) == names
            for name in names:
                expected = [frame[name] for frame in want[frames]]
                assert len(got[name]) == len(expected)
                assert isinstance(got[name], list) == (not dataset.features[name].is_fixed)
                for a, b in zip(got[name], expected, strict=True):
                    same(a, b)
            if not want[frames]:
                assert isinstance(got["photo"], np.ndarray)
                assert got["photo"].shape == (0, 32, 40, 3)


def test_frames_and_features_that_are_not_there(dataset: Dataset) -> None:
    episode = dataset.episodes["alpha/Easy/P000"]
    for outside in ([-1], [11]):
        with pytest.raises(IndexError):
            episode.read(outside)
    with pytest.raises(SchemaError, match="no such feature"):
        episode.read([0], features=["nothing"])
    with pytest.raises(SchemaError, match="no such feature"):
        dataset.select(["pose"]).episodes[episode.key].present("flow")


@pytest.mark.parametrize("frame", [11, -12, 10**30])
def test_a_frame_outside_is_an_index_error(dataset: Dataset, frame: int) -> None:
    with pytest.raises(IndexError, match="11 frames"):
        dataset.episodes["alpha/Easy/P000"][frame]


def test_numpy_numbers_are_frames(dataset: Dataset) -> None:
    episode = dataset.episodes["alpha/Easy/P000"]
    same(episode[np.int64(3)]["pose"], episode[3]["pose"])
    with pytest.raises(TypeError):
        episode["pose"]  # type: ignore[index]


def test_a_slice_over_a_missing_feature_says_which(dataset: Dataset) -> None:
    with pytest.raises(ClipError, match="flow") as caught:
        dataset.select(["flow"]).episodes["alpha/Easy/P000"][:]
    assert (caught.value.episode, caught.value.frame) == ("alpha/Easy/P000", 10)
    assert len(dataset.select(["flow"]).episodes["alpha/Easy/P000"][:10]["flow"]) == 10


# The dataset


def test_it_tells_what_it_holds(dataset: Dataset) -> None:
    assert dict(zip(dataset.episodes, map(len, dataset.episodes.values()), strict=True)) == EPISODES
    assert dataset.num_frames == 17
    assert [str(spec) for spec in dataset.features.values()] == [
        str(spec) for spec in small_schema().values()
    ]
    assert dataset.episodes["beta/Hard/P000"].metadata == {
        "difficulty": "Hard",
        "number": 2,
        "place": "Ürümqi",
    }
    assert "image_left: uint8 [32, 40, 3]" in repr(dataset)
    assert repr(dataset.episodes["beta/Hard/P000"]) == "Episode('beta/Hard/P000', 1 frames)"
    with pytest.raises(KeyError):
        dataset.episodes["nothing"]


def test_what_a_notebook_shows_is_read_from_the_index(written: tuple[Path, Written]) -> None:
    storage = CountingStorage(LocalStorage(written[0]))
    dataset = seqrecord.open(storage)
    storage.reset()
    html = dataset._repr_html_()
    for text in (dataset.url, "3: alpha/Easy/P000, alpha/Easy/P001, beta/Hard/P000", "17"):
        assert text in html
    assert html.count("<tr>") == 1 + len(dataset.features)
    assert "<td>image_left</td><td>uint8</td><td>32 x 40 x 3</td>" in _plain(html)
    html = dataset.select(["flow", "step"]).episodes["alpha/Easy/P000"]._repr_html_()
    for text in ("alpha/Easy/P000", "frames: 11", "difficulty: Easy", "place: Ürümqi"):
        assert text in html
    # One frame lacks flow.
    assert [row[-1] for row in _cells(html)] == ["missing", "1", "0"]
    assert not storage.ranges
    assert not storage.sizes


def test_what_a_notebook_shows_is_escaped_and_small(tmp_path: Path) -> None:
    key = "<script>alert('key')</script>"
    metadata = {
        "<b>name</b>": '<img src="x" onerror="alert(1)">',
        "frames": "&amp;",
        "long": "x" * 10**5,
    }
    many = {f"number {i}": i for i in range(1000)}
    with (
        seqrecord.SeqRecordWriter(tmp_path / "<i>records") as writer,
        writer.episode(key, metadata={**metadata, **many}) as episode,
    ):
        episode.append({"x": np.zeros(2)})
    with seqrecord.open(tmp_path / "<i>records") as dataset:
        for html in (dataset._repr_html_(), dataset.episodes[key]._repr_html_()):
            tags = re.findall(r"<(/?\w+)[^>]*>", html)
            assert set(tags) <= {
                f"{end}{tag}"
                for end in ("", "/")
                for tag in ("div", "strong", "table", "tr", "th", "td")
            }
            assert len(html) < 5000
    assert "&lt;img src=&quot;x&quot;" in html
    assert "&amp;amp;" in html
    assert html.count(">number ") == 17
    assert "983 more" in html


def _plain(html: str) -> str:
    """Without attributes."""
    return re.sub(r"<(\w+)[^>]*>", r"<\1>", html)


def _cells(html: str) -> list[list[str]]:
    rows = _plain(html).split("<tr>")[1:]
    return [re.findall(r"<t[dh]>([^<]*)<", row) for row in rows]


def test_episodes_are_found(dataset: Dataset) -> None:
    assert dataset.find_episodes(None).tolist() == [0, 1, 2]
    assert dataset.find_episodes("alpha/*").tolist() == [0, 1]
    assert dataset.find_episodes(["beta/Hard/P000", "alpha/Easy/P000"]).tolist() == [0, 2]
    assert dataset.find_episodes(lambda m: m["number"] > 0).tolist() == [1, 2]
    for nothing in ("gamma/*", ["alpha"], [], lambda m: False):
        with pytest.raises(ClipError):
            dataset.find_episodes(nothing)


@pytest.mark.parametrize("features", [["nothing"], [], ["pose", "pose"]])
def test_features_that_are_not_there(written: tuple[Path, Written], features: list[str]) -> None:
    with pytest.raises(SchemaError):
        seqrecord.open(written[0], features=features)


def test_close_then_use_again(written: tuple[Path, Written]) -> None:
    with seqrecord.open(written[0]) as dataset:
        episode = dataset.episodes["alpha/Easy/P000"]
        first = episode[0]["pose"]
    same(episode[0]["pose"], first)
    dataset.close()


def test_an_append_is_seen_by_the_next_open(tmp_path: Path) -> None:
    write_small(tmp_path)
    storage = LocalStorage(tmp_path)  # one storage all along, so that its handles are old
    before = seqrecord.open(storage)
    again = pickle.dumps(before)
    write_small(tmp_path, episodes={"late/Easy/P000": 3}, mode="append")
    assert seqrecord.open(storage).num_frames == 20
    assert before.num_frames == 17
    assert len(before.select(["pose"]).episodes["alpha/Easy/P000"][0:10]["pose"]) == 10
    assert pickle.loads(again).num_frames == 17


# What is read


def needed(dataset: Dataset, key: str, chunks: range) -> int:
    """Bytes of the pages of a dataset's features in some chunks of an episode."""
    reader = dataset.contents.chunks
    number = dataset.contents.index.positions[key]
    pages = [page for c in chunks for page in reader.pages(nth_chunk(dataset, number, c))]
    return sum(page.stop - page.start for page in pages)


@pytest.mark.parametrize("features", [["pose"], ["flow", "mask"], ["image_left", "step"], None])
def test_only_the_pages_of_the_features_are_read(
    written: tuple[Path, Written], features: list[str] | None
) -> None:
    storage = CountingStorage(LocalStorage(written[0]))
    dataset = seqrecord.open(storage, features=features)
    storage.reset()
    key = "alpha/Easy/P000"
    dataset.episodes[key][0]
    want = needed(dataset, key, range(1))
    merged = 64 * (len(dataset.features) - 1) + 2 * 4  # and checksums of slices of raw pages
    assert want <= storage.bytes_read <= want + merged
    storage.reset()
    chosen = dataset.select(features or ["pose", "step", "photo"])
    chosen.episodes[key][2:6]
    want = needed(chosen, key, range(2))
    most = want + 2 * 64 * (len(chosen.features) - 1) + 2 * 2 * 4
    assert want <= storage.bytes_read <= most
    storage.reset()
    dataset.episodes[key].read(range(2, 6), features=list(chosen.features))
    assert want <= storage.bytes_read <= most
    assert not storage.sizes
    assert not storage.lists


def test_pages_that_lie_together_are_one_range(written: tuple[Path, Written]) -> None:
    storage = CountingStorage(LocalStorage(written[0]))
    dataset = seqrecord.open(storage)
    storage.reset()
    dataset.episodes["alpha/Easy/P001"][0:4]
    ((path, ranges),) = storage.ranges.items()
    assert path.startswith("records/")
    assert len(ranges) == 1


def test_without_verify_only_the_frame_is_read(written: tuple[Path, Written]) -> None:
    storage = CountingStorage(LocalStorage(written[0]))
    for name in ("image_left", "photo", "range", "step"):
        dataset = seqrecord.open(storage, features=[name], verify=False)
        page = needed(dataset, "alpha/Easy/P000", range(1))
        storage.reset()
        frame = dataset.episodes["alpha/Easy/P000"][2]
        same(frame[name], written[1]["alpha/Easy/P000"][2][name])
        table = 4 * 5 + 4 * 4 * 2
        assert 0 < storage.bytes_read <= page / 4 * 1.3 + table


def test_a_flipped_byte_is_an_error_only_where_it_is_read(tmp_path: Path) -> None:
    write_small(tmp_path)
    page = damage(tmp_path, "pose", 0, 1, at=3)
    file = tmp_path / page.chunk.path
    with seqrecord.open(tmp_path) as dataset:
        episode = dataset.episodes["alpha/Easy/P000"]
        episode[0]
        dataset.select(["image_left", "mask"]).episodes["alpha/Easy/P000"][4:8]
        with pytest.raises(ChecksumError) as e:
            episode[5]
        assert e.value.episode == "alpha/Easy/P000 (frames 4 to 7)"
        assert (e.value.file, e.value.offset, e.value.feature) == (str(file), page.start, "pose")


def test_faults_are_errors_and_never_wrong_data(written: tuple[Path, Written]) -> None:
    storage = FaultyStorage(LocalStorage(written[0]), FailTransiently(3, 0.3))
    dataset = None
    while dataset is None:
        with contextlib.suppress(StorageError):
            dataset = seqrecord.open(storage, features=["pose"])
    failed, want = 0, written[1]["alpha/Easy/P000"]
    for i in range(200):
        try:
            same(dataset.episodes["alpha/Easy/P000"][i % 11]["pose"], want[i % 11]["pose"])
        except StorageError:
            failed += 1
    assert 20 < failed < 120
    with pytest.raises(StorageError):
        seqrecord.open(FaultyStorage(LocalStorage(written[0]), FailAt("read")))


def test_many_threads_read_one_dataset(dataset: Dataset, written: tuple[Path, Written]) -> None:
    keys = list(written[1])
    barrier = threading.Barrier(6)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        barrier.wait()
        for _ in range(30):
            key = keys[int(rng.integers(3))]
            want = written[1][key]
            i = int(rng.integers(len(want)))
            for name, array in dataset.episodes[key][i].items():
                same(array, want[i][name])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(read, range(6)))


# A big index


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """800,000 chunks of 8 frames, of which the table is large enough to be mapped."""
    folder = tmp_path_factory.mktemp("big")
    write_big_index(folder, episodes=10_000, frames=640, chunk_frames=8)
    os.sync()  # what is not yet on the disk counts as memory of who maps it
    return folder


def test_opening_a_thousand_files_reads_manifest_and_index_only(big: Path) -> None:
    storage = CountingStorage(LocalStorage(big))
    start = time.process_time()  # however long it waits for a core
    dataset = seqrecord.open(storage)
    assert time.process_time() - start < 5
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
    index = dataset.contents.index
    arrays: list[npt.NDArray[Any]] = [
        index.groups[0].page_length,
        index.groups[0].page_crc32c,
        index.groups[0].offset,
        index.groups[0].file,
        index.groups[0].first_frame,
        index.groups[0].num_frames,
    ]
    assert int(arrays[0].sum()) > 0
    return [_memory(array.ctypes.data) for array in arrays]


def _send_mapped(connection: Any, dataset: Dataset) -> None:
    connection.send(_mapped(dataset))


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_workers_share_the_mapped_index(big: Path, method: str) -> None:
    with seqrecord.open(big) as dataset:
        # The manifest travels with it, for it may be replaced; the index does not.
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
