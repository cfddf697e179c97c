"""Groups made by the writer: their features, the length of chunks, and the content of files."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import Dataset, FeatureSpec, Schema, SeqRecordWriter, reindex, summarize, verify
from seqrecord.edit import clean
from seqrecord.errors import ClipError, FrameError, SchemaError
from seqrecord.loader.clips.layouts import missing_frames
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.edits import Delete, Edit, Split, encode_edit
from seqrecord.store.format.pages import aligned, page_offsets, slice_table
from seqrecord.store.writing import chunking
from seqrecord.store.writing import writer as writer_module
from tests.kit.clip_data import no_leaks
from tests.kit.command_line import run
from tests.kit.datasets import chunk_lengths, columns, write_dataset, write_episodes
from tests.kit.tiny import change_manifest, footers_of, loaded, read_all, same_frames

U1 = np.dtype("u1")


def spec(name: str, nbytes: int, group: int = 0, **options: Any) -> FeatureSpec:
    return FeatureSpec(name, U1, (nbytes,), group=group, **options)


TEXT = FeatureSpec("note", U1, (None,), value="text")
BYTES = FeatureSpec("blob", U1, (None,), value="bytes")


def stored(*specs: FeatureSpec, **options: Any) -> Schema:
    """How a writer would store these features."""
    writer = SeqRecordWriter("memory://groups", schema=Schema(specs), **options)
    writer.abort()
    assert writer.schema is not None
    return writer.schema


def test_which_features_are_one_group() -> None:
    first: dict[str, Any] = {"c": {"group": 0}}
    second: dict[str, Any] = {"b": {"group": 1}}
    for specs, given, expected in (
        # Small features and text are one.
        ([spec("image", 4096), spec("pose", 4095)], None, [0, 1]),
        ([spec("pose", 28), spec("image", 1 << 20), TEXT, spec("depth", 5000)], None, [0, 1, 0, 1]),
        ([spec("image", 9000), BYTES, FeatureSpec("points", U1, (None, 3))], None, [0, 0, 0]),
        ([spec("pose", 28), TEXT], None, [0, 0]),
        ([BYTES, TEXT], None, [0, 1]),
        # Given groups stay and are renumbered.
        ([spec("a", 1, 7), spec("b", 9000, 3), spec("c", 2, 7)], None, [0, 1, 0]),
        ([spec("a", 9000), spec("b", 9000), spec("c", 2)], second, [0, 1, 0]),
        ([spec("a", 9000), spec("c", 2)], first, [0, 0]),
    ):
        found = stored(*specs, features=given)
        assert [feature.group for feature in found.values()] == expected, specs


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        *(([4095] * 3, 64), ([1024], 1024), ([1025], 512), ([1000, 1000, 49], 256)),
        *(([4095, 4096], 32), ([2 << 20], 16), ([3 << 20, 3 << 20], 8)),
        pytest.param([25 << 20], 1, marks=pytest.mark.slow),
    ],
)
def test_frames_a_chunk(tmp_path: Path, nbytes: list[int], expected: int) -> None:
    schema = Schema([spec(f"f{i}", n) for i, n in enumerate(nbytes)])
    frame = {name: np.zeros(feature.shape[0] or 0, "u1") for name, feature in schema.items()}
    one = {"f0": {"group": 0}}  # and all others with it
    frames = {"a": [frame] * (expected + 1)}
    write_dataset(tmp_path, frames, schema=schema, features=one, codecs="fast")
    assert chunk_lengths(tmp_path) == [[expected, 1]]


def write(root: Path, num_frames: int, **options: Any) -> None:
    """`image` in one group; `pose` and `note`, which frames 5, 70 and 130 lack, in another."""
    write_dataset(root, {"a": map(frame, range(num_frames))}, codecs="raw", **options)
    assert not seqrecord.verify(root).problems


def frame(number: int) -> dict[str, Any]:
    made = {
        "image": np.full((40, 41, 3), number % 256, np.uint8),
        "pose": np.full(7, number, np.float32),
        "note": f"frame {number} ä",
    }
    if number in (5, 70, 130):
        del made["note"]
    return made


@pytest.mark.parametrize(
    ("options", "image", "small"),
    [
        ({}, [32] * 6 + [8], [200]),
        ({"chunk_frames": 150}, [150, 50], [150, 50]),
        ({"chunk_frames": 1}, [1] * 200, [1] * 200),
        ({"max_file_size": 1}, [32] * 6 + [8], [200]),
    ],
)
def test_each_group_has_chunks_of_its_own(
    tmp_path: Path, options: dict[str, Any], image: list[int], small: list[int]
) -> None:
    write(tmp_path, 200, **options)
    assert chunk_lengths(tmp_path) == [image, small]
    with seqrecord.open(tmp_path) as dataset:
        groups = [list(group.schema) for group in dataset.contents.index.groups]
        assert groups == [["image"], ["pose", "note"]]
        absent = np.flatnonzero(~dataset.episodes["a"].present("note"))
        assert absent.tolist() == [5, 70, 130]
    assert same_frames(read_all(tmp_path), {"a": [*map(frame, range(200))]})


def test_a_long_episode_of_small_features_alone(tmp_path: Path) -> None:
    x = [float(n) if n % 100 else None for n in range(1124)]
    y = [None if n % 100 else n for n in range(1124)]
    write_dataset(tmp_path, {"a": columns(x=x, y=y)})
    assert not seqrecord.verify(tmp_path).problems
    assert chunk_lengths(tmp_path) == [[1024, 100]]
    with seqrecord.open(tmp_path) as dataset:
        read = dataset.episodes["a"]
        assert np.flatnonzero(read.present("y")).tolist() == list(range(0, 1124, 100))
        x = read.read([n for n in range(1124) if n % 100], features=["x"])["x"]
        assert [int(value) for value in x] == [n for n in range(1124) if n % 100]
        assert read[1100] == {"y": 1100}


def test_chunks_that_take_no_room(tmp_path: Path) -> None:
    """Of frames that lack all features of a group, several after each other."""
    image, x = [n // 32 in (3, 6) for n in range(200)], [n // 32 != 6 for n in range(200)]
    frames = columns(
        image=[np.full(5000, n, "u1") if image[n] else None for n in range(200)],
        x=[np.full(1, n, "u1") if x[n] else None for n in range(200)],
    )
    schema = Schema([spec("image", 5000), spec("x", 1)])
    write_dataset(tmp_path, {"a": frames, "b": frames}, schema=schema)
    assert not seqrecord.verify(tmp_path).problems
    assert chunk_lengths(tmp_path)[0] == [32, 32, 32, 32, 32, 32, 8] * 2
    with seqrecord.open(tmp_path) as dataset:
        assert len(set(dataset.contents.index.groups[0].offset.tolist())) < 14
        for read in dataset.episodes.values():
            assert read.present("image").tolist() == image
            assert read.present("x").tolist() == x
    assert same_frames(read_all(tmp_path), {"a": frames, "b": frames})


def test_chunks_of_groups_alternate_and_tables_follow_their_pages(
    tmp_path: Path,
) -> None:
    write(tmp_path, 50, chunk_frames=20)
    [(path, footer)] = footers_of(tmp_path).items()
    data = (tmp_path / path).read_bytes()
    places = []
    for number, rows in enumerate(footer.chunks):
        group = footer.schema.group(number)
        for row in rows:
            starts = int(row["offset"]) + page_offsets(row["pages"]["length"])
            pages = [
                data[start : start + int(page["length"])]
                for start, page in zip(starts.tolist(), row["pages"], strict=False)
            ]
            table = slice_table(group, pages)
            assert data[starts[-1] : starts[-1] + len(table)] == table
            assert len(table) > 0
            places.append((int(row["offset"]), number, aligned(int(starts[-1]) + len(table))))
    places.sort()
    assert [number for _, number, _ in places] == [0, 1, 0, 1, 0, 1]
    assert places[0][0] == 64
    assert all(one[2] == other[0] for one, other in pairwise(places)), "chunks are adjacent"


def test_kinds_and_units(tmp_path: Path) -> None:
    given = {
        "image": {"kind": "image"},
        "pose": {"kind": "pose", "unit": "m"},
        "note": {"kind": "text", "unit": None},
    }
    write(tmp_path, 3, features=given)
    with seqrecord.open(tmp_path) as dataset:
        found = [(s.kind, s.unit) for s in dataset.features.values()]
        assert found == [("image", None), ("pose", "m"), ("text", None)]
    same = {"pose": {"group": 1}, "note": {"group": 1}}
    accepted: list[Any] = [{"pose": {"unit": "m"}}, {"image": {}}, given, None, same]
    for features in accepted:
        SeqRecordWriter(tmp_path, mode="append", features=features).close()
    refused: list[Any] = [
        ({"pose": {"unit": "mm"}}, "another unit.*feature: pose; expected: m; got: mm"),
        ({"note": {"kind": "image"}}, "another kind"),
        ({"none": {"kind": "image"}}, "properties of an unknown feature"),
        ({"note": {"colour": "red"}}, "invalid properties of a feature"),
        ({"note": "text"}, "invalid properties of a feature"),
        ({"image": {"kind": "An Image"}}, "not a kind"),
        ({"image": {"group": 1}, "pose": {"group": 2}}, "other groups"),
        ({"pose": {"group": 0}}, "other groups"),
    ]
    for features, message in refused:
        with pytest.raises(SchemaError, match=message):
            SeqRecordWriter(tmp_path, mode="append", features=features)


def test_properties_of_features_of_the_first_frames(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, features={"y": {"kind": "depth"}}) as writer:
        episode = writer.episode("a")
        episode.append({"x": 1})
        with pytest.raises(SchemaError, match="properties of an unknown feature"):
            episode.close()
        write_episodes(writer, {"b": [{"y": 1}, {"x": 1}]})
        assert writer.schema is not None
        assert writer.schema["y"].kind == "depth"


def test_frames_a_second(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, fps=10) as writer:
        for key, fps in (("a", None), ("b", 29.97), ("c", np.float32(0.5))):
            write_episodes(writer, {key: [{"x": 1}]}, rates={key: fps})
        for fps in (0, -1, float("nan"), float("inf"), True, "10"):
            with pytest.raises(SchemaError, match=r"fps|frames per second"):
                writer.episode("d", fps=fps)  # type: ignore[arg-type]
    assert seqrecord.open(tmp_path).contents.index.fps.tolist() == [10, 29.97, 0.5]


# Default frames per chunk: by the sizes of actual frames

KIB = 1 << 10


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 KiB for 48 MiB."""
    for module in (chunking, writer_module):
        monkeypatch.setattr(module, "CHUNK_BYTES", 48 * KIB)


def lidar(points: int, fill: int = 0) -> dict[str, Any]:
    """A frame of so many points, 3 bytes each, beside a small state."""
    return {"state": np.full(7, fill, np.float32), "lidar": np.full((points, 3), fill, np.uint8)}


def written(folder: Path, episodes: Sequence[Sequence[int]], **options: Any) -> list[int]:
    """Frames in the first chunk of `lidar` of each episode, given the points of each frame."""
    features = {"lidar": {"shape": (None, 3)}}
    frames = {
        f"e{number}": [lidar(count, i % 256) for i, count in enumerate(points)]
        for number, points in enumerate(episodes)
    }
    write_dataset(folder, frames, codecs="raw", features=features, **options)
    assert same_frames(read_all(folder), frames)
    with seqrecord.open(folder) as dataset:
        assert [spec.group for spec in dataset.features.values()] == [0, 1]
        return first_chunks(dataset, 1)


def first_chunks(dataset: Dataset, group: int) -> list[int]:
    rows = dataset.contents.index.groups[group]
    length: list[int] = rows.num_frames[rows.first_chunk].tolist()
    return length


LIDAR = Schema([FeatureSpec("state", np.dtype("<f4"), (7,)), FeatureSpec("lidar", U1, (None, 3))])
SEEN = [
    ([100 + i for i in range(70)], 32),  # of no importance beside 48 MiB
    ([KIB * 2 // 3 + i for i in range(30)], 16),
    ([10 * KIB // 3 - 100 + i for i in range(7)], 4),  # five are looked at
]
GIVEN = [
    *SEEN,
    ([0] * 40, 32),
    ([5], 1),
    ([KIB // 3 + i for i in range(40)], 32),
    ([1, 2, 3, 20 * KIB // 3, 4, 5, 6, 7], 2),  # the largest of the first ones decides
    ([49 * KIB // 3, 1, 2], 1),
    ([1, 2, 49 * KIB // 3, 3], 1),
]


@pytest.mark.usefixtures("small_limit")
def test_default_frames_per_chunk(tmp_path: Path) -> None:
    for number, (points, expected) in enumerate([*SEEN, ([5, 6], 2)]):
        assert written(tmp_path / f"unknown {number}", [points]) == [expected]
    for number, (points, expected) in enumerate(GIVEN):
        folder = tmp_path / f"given {number}"
        assert written(folder, [points], schema=LIDAR) == [expected]
        with seqrecord.open(folder) as dataset:
            assert first_chunks(dataset, 0) == [len(points)], "of the small state, far more fit"


@pytest.mark.usefixtures("small_limit")
def test_each_episode_by_its_own_frames(tmp_path: Path) -> None:
    episodes = [[1, 2, 3], [17 * KIB // 3] * 4, [9] * 33, [1] * 32 + [4 * KIB // 3] * 8]
    # Later frames are unavailable when the first chunk is written.
    assert written(tmp_path / "seen", episodes) == [3, 2, 32, 32]
    # A number that is given counts.
    episodes = [[5, 6] * 35, [20 * KIB // 3] * 3]
    assert written(tmp_path / "given", episodes, chunk_frames=3) == [3, 3]


def test_fixed_shapes_are_counted_at_once(tmp_path: Path) -> None:
    with (
        SeqRecordWriter(tmp_path, schema=Schema([spec("x", 12 << 20)]), codecs="raw") as writer,
        writer.episode("a") as episode,
    ):
        for number in range(4):
            assert not list((tmp_path / "records").glob("*.partial")), number
            episode.append({"x": np.zeros(12 << 20, np.uint8)})
        (file,) = (tmp_path / "records").glob("*.partial")
        assert file.stat().st_size > 48 << 20
    assert first_chunks(seqrecord.open(tmp_path), 0) == [4]


@pytest.mark.usefixtures("small_limit")
def test_frames_wait_within_48_mib(tmp_path: Path) -> None:
    with (
        SeqRecordWriter(tmp_path, schema=LIDAR, codecs="raw") as writer,
        writer.episode("a") as episode,
    ):
        for number in range(12):
            episode.append(lidar(16 * KIB // 3))
            files = list((tmp_path / "records").glob("*.partial"))
            size = files[0].stat().st_size if files else 0
            assert (number + 1) * 15 * KIB - size < 48 * KIB
    assert first_chunks(seqrecord.open(tmp_path), 1) == [2]


@pytest.mark.usefixtures("small_limit")
def test_info_shows_the_length_of_chunks(tmp_path: Path) -> None:
    written(tmp_path / "same", [[5] * 70, [5] * 3], schema=LIDAR)
    out = run("info", tmp_path / "same").output
    assert "4 chunks of 32 frames" in out
    assert "2 chunks of 3 to 70 frames" in out
    written(tmp_path / "mixed", [[5] * 70, [17 * KIB // 3] * 4], schema=LIDAR)
    out = run("info", tmp_path / "mixed").output
    assert "chunks of 2 to 32 frames" in out
    groups = summarize(seqrecord.open(tmp_path / "mixed")).to_json()["groups"]
    found = [(group["min_chunk_frames"], group["max_chunk_frames"]) for group in groups]
    assert found == [(4, 70), (2, 32)]


# Text and bytes

VALUES = ["", "a", "Zürich 東京 \0 end", "x" * 5000]


@pytest.mark.parametrize("codec", ["raw", "fast", "balanced", "small"])
@pytest.mark.parametrize("given", [True, False])
def test_text_and_bytes_come_back(tmp_path: Path, codec: str, given: bool) -> None:
    schema = Schema([TEXT, BYTES]) if given else None
    blobs = [b"", b"a", bytearray(b"\0\1"), memoryview(b"abcdef")[::2]]
    xyz = np.frombuffer(b"xyz", "u1") if given else b"xyz"
    frames = columns(note=[*VALUES, None, np.str_("a")], blob=[*blobs, xyz, np.bytes_(b"b")])
    write_dataset(tmp_path, {"a": frames}, schema=schema, codecs=codec)
    with seqrecord.open(tmp_path) as dataset:
        assert [str(spec) for spec in dataset.features.values()] == ["note: text", "blob: bytes"]
        read = dataset.episodes["a"]
        assert [read[i].get("note") for i in range(6)] == [*VALUES, None, "a"]
        assert [read[i]["blob"] for i in range(6)] == [*map(bytes, blobs), b"xyz", b"b"]
        assert read.read([3, 0], features=["note"])["note"] == [VALUES[3], VALUES[0]]
        assert type(read[4]["blob"]) is bytes
    for value in ("bytes", "array"):
        other = Schema([FeatureSpec("note", U1, (None,), value=value), BYTES])
        with pytest.raises(SchemaError, match="other features"):
            SeqRecordWriter(tmp_path, mode="append", schema=other)


def test_text_is_not_compressed_unless_asked_for() -> None:
    def codec(codecs: Any) -> Any:
        return stored(TEXT, codecs=codecs)["note"].codec

    assert codec(None) == codec("balanced") == codec("fast") == codec("raw") == ()
    assert codec("small") != ()
    assert codec({"note": [{"id": "zstd", "level": 3}]}) == ({"id": "zstd", "level": 3},)


def test_invalid_texts_and_bytes_are_refused(tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path, schema=Schema([TEXT, BYTES, spec("state", 3)]))
    refused: list[tuple[str, Any, str]] = [
        ("note", b"abc", "expected: str; got: bytes"),
        ("note", np.zeros(3, np.uint8), r"expected: str; got: uint8 \[3\]"),
        ("note", 3, "expected: str; got: int"),
        ("note", "\ud800", "UTF-8"),
        ("blob", "abc", "expected: bytes; got: str"),
        ("blob", np.zeros((2, 2), np.uint8), r"got: uint8 \[2, 2\]"),
        ("blob", np.zeros(2, np.int8), r"got: int8 \[2\]"),
        ("blob", [1, 2], r"got: int64 \[2\]"),
        ("state", "abc", "does not fit"),
        ("state", b"abc", "does not fit"),
    ]
    for feature, item, message in refused:
        with pytest.raises(FrameError, match=message) as caught:
            writer.episode("a").append({feature: item})
        error = caught.value
        assert (error.episode, error.frame, error.feature) == ("a", 0, feature)


def write_large(path: Path, **options: Any) -> None:
    """Pages of more than 1 MiB, which threads hash."""
    rng, shape = np.random.default_rng(0), (512, 512, 3)
    with SeqRecordWriter(path, chunk_frames=2, codecs="raw", **options) as writer:
        for number, length in enumerate((5, 1, 2, 4)):
            with writer.episode(f"e{number}") as episode:
                for i in range(length):
                    frame = {"left": rng.integers(0, 256, shape, U1), "step": np.int64(i)}
                    if i != 2:
                        frame["right"] = rng.integers(0, 256, shape, U1)
                    episode.append(frame)
                    if number == 3:
                        episode.flush()


@pytest.mark.parametrize("options", [{}, {"max_file_size": 4 << 20}])
def test_threads_hash_what_was_written(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of raw pages is used again only after its hash."""

    sha256, hashing = hashlib.sha256, []

    def slow(data: Any = b"") -> Any:
        if len(data) > 1 << 20:
            hashing.append(threading.get_ident())
            time.sleep(0.05)
        return sha256(data)

    monkeypatch.setattr(hashlib, "sha256", slow)
    with no_leaks():
        write_large(tmp_path / "records", **options)
    assert len(hashing) > 4
    assert threading.get_ident() not in hashing
    assert seqrecord.verify(tmp_path / "records").problems == ()


def test_digests_without_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "seqrecord-digest":
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    write_large(tmp_path / "with")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    write_large(tmp_path / "without")
    first, second = (seqrecord.open(tmp_path / name).fingerprint for name in ("with", "without"))
    assert refused
    assert first == second
    assert seqrecord.verify(tmp_path / "without").problems == ()


# Reading groups


Frames = list[dict[str, Any]]

_ZSTD = ({"id": "zstd", "level": 1},)
SCHEMA = Schema(
    [
        FeatureSpec("image", np.dtype("u1"), (6, 5), kind="image"),
        FeatureSpec("pose", np.dtype("<f8"), (7,), group=1, kind="pose", unit="m"),
        FeatureSpec("task", np.dtype("u1"), (None,), group=1, kind="text", value="text"),
        FeatureSpec("depth", np.dtype("<f4"), (6, 5), _ZSTD, unit="m"),
        FeatureSpec("packet", np.dtype("u1"), (None,), _ZSTD, group=2, value="bytes"),
        FeatureSpec("points", np.dtype("<f4"), (None, 3), group=2),
    ]
)


def make_frames(rng: random.Random, count: int) -> Frames:
    """Frames with runs that lack features; each frame has at least one feature."""
    frames: Frames = []
    absent: set[str] = set()
    for number in range(count):
        if rng.random() < 0.1:
            absent = set(rng.sample(list(SCHEMA), rng.randint(0, 5)))
        frame = {
            "image": np.full((6, 5), number % 256, np.uint8),
            "pose": np.arange(7) / 7 + number,
            "task": "größer 日本"[: number % 10],
            "depth": np.full((6, 5), number, "<f4"),
            "packet": bytes(range(number % 5)),
            "points": np.full((number % 4, 3), number, "<f4"),
        }
        frames.append({name: value for name, value in frame.items() if name not in absent})
    return frames


def group_write(root: Path, seed: int) -> dict[str, Frames]:
    """Write several record files, with chunks that end at random flushes."""
    rng = random.Random(seed)
    written: dict[str, Frames] = {}
    codecs = {name: list(spec.codec) for name, spec in SCHEMA.items()}
    with SeqRecordWriter(
        root,
        schema=SCHEMA,
        codecs=codecs,
        chunk_frames=rng.choice([None, 3, 64, 100]),
        max_file_size=rng.choice([1000, 20_000, 1 << 30]),
    ) as writer:
        for number in range(4):
            key = f"env/{number}"
            written[key] = make_frames(rng, rng.choice([1, 30, 200]))
            with writer.episode(key, metadata={"n": number}, fps=[None, 10][number % 2]) as episode:
                for frame in written[key]:
                    episode.append(frame)
                    if rng.random() < 0.05:
                        episode.flush()
    return written


def check_frame(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(found[name], value, strict=True)
        else:
            assert found[name] == value, name


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_every_way_to_read(tmp_path: Path, seed: int, verified: bool) -> None:
    written = group_write(tmp_path, seed)
    rng = random.Random(seed)
    with seqrecord.open(tmp_path, verify=verified) as dataset:
        assert len(dataset.contents.index.groups) == 3
        absent = {name: set[tuple[int, int]]() for name in SCHEMA}
        for number, (key, frames) in enumerate(written.items()):
            episode = dataset.episodes[key]
            assert (len(episode), episode.fps) == (len(frames), [None, 10][number % 2])
            assert len(episode.uid) == 32
            for i, frame in enumerate(frames):
                check_frame(episode[i], frame)
            for name in SCHEMA:
                present = [name in frame for frame in frames]
                assert episode.present(name).tolist() == present
                absent[name] |= {(number, i) for i, has in enumerate(present) if not has}
            for _ in range(10):
                names = rng.sample(list(SCHEMA), rng.randint(1, 6))
                numbers = [rng.randrange(len(frames)) for _ in range(rng.randint(0, 40))]
                if rng.random() < 0.5:
                    first = rng.randrange(len(frames))
                    numbers = list(range(first, min(len(frames), first + rng.randint(1, 90))))
                if any(name not in frames[i] for i in numbers for name in names):
                    with pytest.raises(ClipError, match="lacks a feature"):
                        episode.read(numbers, features=names)
                    continue
                found = episode.read(numbers, features=names)
                assert list(found) == names
                for place, i in enumerate(numbers):
                    chosen = {name: frames[i][name] for name in names}
                    check_frame({name: found[name][place] for name in names}, chosen)
            with pytest.raises(IndexError):
                episode.read([len(frames)])
        for names in (["image"], ["task", "points"], list(SCHEMA)):
            missing = missing_frames(dataset.select(names).contents)
            runs = zip(missing.episode, missing.start, missing.stop, strict=True)
            listed = {(int(e), i) for e, start, stop in runs for i in range(start, stop)}
            assert listed == set.union(*(absent[name] for name in names))
    assert verify(tmp_path, deep=True).ok


def test_summaries(tmp_path: Path) -> None:
    written = group_write(tmp_path, 2)
    summary = summarize(tmp_path)
    total = sum(map(len, written.values()))
    assert summary.num_frames == total
    names = [list(group.features) for group in summary.groups]
    assert names == [["image", "depth"], ["pose", "task"], ["packet", "points"]]
    assert summary.fps == (10.0, 10.0)
    for feature in summary.features:
        absent = sum(feature.spec.name not in f for frames in written.values() for f in frames)
        assert (feature.num_missing, feature.num_frames) == (absent, total - absent)
    text = str(summary)
    assert "group 0 " in text
    assert "fps           10" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["feature", "dtype", "shape", "codec", "group", "kind", "unit"] in [r[:7] for r in rows]
    assert ["task", "text", "raw", "1", "text"] in [r[:5] for r in rows]
    assert json.loads(json.dumps(summary.to_json()))["groups"][1]["features"] == ["pose", "task"]
    assert "fps           10" in run("info", tmp_path, "env/1").stdout
    one = json.loads(run("info", tmp_path, "env/1", "--json").stdout)
    assert (one["fps"], one["split"], one["num_frames"]) == (10, None, len(written["env/1"]))


def put_edits(root: Path, *edits: Edit) -> None:
    """Add a file of edits to the manifest; callers rebuild the index."""
    (root / "edits").mkdir(exist_ok=True)
    number = len(list((root / "edits").iterdir()))
    path, data = f"edits/{number:05d}-x.json", encode_edit(edits)
    (root / path).write_bytes(data)
    entry = {"path": path, "size": len(data), "crc32c": f"{crc32c(data):08x}"}
    change_manifest(root, lambda value: value["edits"].append(entry))


def test_edits_survive_appends_and_rebuilds(tmp_path: Path) -> None:
    written = group_write(tmp_path, 3)
    with seqrecord.open(tmp_path) as dataset:
        uid = {key: episode.uid for key, episode in dataset.episodes.items()}
        fingerprint = dataset.fingerprint
    put_edits(tmp_path, Split("train", (uid["env/0"], uid["env/1"], uid["env/2"])))
    put_edits(tmp_path, Delete((uid["env/1"],)), Split("val", (uid["env/2"],)))
    assert verify(tmp_path).problems, "the index does not match the edits yet"
    reindex(tmp_path)
    assert verify(tmp_path).ok
    manifest = loaded(tmp_path)[0]
    assert manifest.splits == ("train", "val")
    assert manifest.fingerprint != fingerprint
    assert [file.path for file in manifest.edits] == ["edits/00000-x.json", "edits/00001-x.json"]
    with seqrecord.open(tmp_path) as dataset:
        assert list(dataset.episodes) == ["env/0", "env/2", "env/3"]
        for key, split in (("env/0", "train"), ("env/2", "val"), ("env/3", None)):
            assert json.loads(run("info", tmp_path, key, "--json").stdout)["split"] == split
            check_frame(dataset.episodes[key][0], written[key][0])
    assert summarize(tmp_path).splits == {"train": 1, "val": 1}
    assert "train 1, val 1, none 1" in str(summarize(tmp_path))
    # Edits survive an append, a lost manifest and a lost index.
    write_dataset(tmp_path, {"z": [written["env/0"][0]]}, mode="append")
    assert loaded(tmp_path)[0].splits == ("train", "val")
    put_edits(tmp_path, Delete((loaded(tmp_path)[1].uid(3),)))
    reindex(tmp_path)
    manifest = loaded(tmp_path)[0]
    edits, other = tmp_path / "edits" / "00002-x.json", tmp_path / "edits" / "z.txt"
    (tmp_path / "manifest.json").unlink()
    edits.rename(other)
    reindex(tmp_path)  # other files are ignored: `z` is visible again
    assert "z" in loaded(tmp_path)[1].keys.to_pylist()
    other.rename(edits)
    (tmp_path / "manifest.json").unlink()
    assert reindex(tmp_path).fingerprint == manifest.fingerprint


def test_clean_and_broken_edits(tmp_path: Path) -> None:
    """`clean` removes unused edits and statistics; broken edits are errors."""
    group_write(tmp_path, 1)
    put_edits(tmp_path, Split("train", ("0" * 32,)))
    assert verify(tmp_path).ok
    statistics = loaded(tmp_path)[0].statistics
    assert statistics is not None
    strays = [f"edits/00000001-{'0' * 16}.json", f"index/{'0' * 16}-statistics.json"]
    stray = [tmp_path / name for name in strays]
    for path in stray:
        path.write_bytes(b"{}")
    kept = [tmp_path / "edits" / name for name in ("notes.txt", "00000-x.json")]
    kept[0].write_bytes(b"mine")
    assert clean(tmp_path, older_than=0, dry_run=True) == strays
    assert clean(tmp_path, older_than=3600) == []
    assert clean(tmp_path, older_than=0) == strays
    assert not any(path.exists() for path in stray)
    assert all(path.exists() for path in (*kept, tmp_path / statistics.path))
    manifest = loaded(tmp_path)[0]
    assert (len(manifest.edits), manifest.statistics) == (1, statistics)
    path = kept[1]
    path.write_bytes(path.read_bytes().replace(b"0" * 32, b"1" * 32))
    [problem] = verify(tmp_path).problems
    assert problem.file == str(path)
    with pytest.raises(type(problem)):
        reindex(tmp_path)
