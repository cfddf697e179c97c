"""Groups as the writer makes them: which features, how long chunks, and what a file holds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import FeatureSpec, Schema, SeqRecordWriter
from seqrecord.errors import FrameError, SchemaError
from seqrecord.format.pages import aligned, page_offsets, slice_table
from tests.tiny import footers_of

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


def groups(*specs: FeatureSpec, **options: Any) -> list[int]:
    return [feature.group for feature in stored(*specs, **options).values()]


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ([spec("image", 4096), spec("pose", 4095)], [0, 1]),
        ([spec("pose", 28), spec("image", 1 << 20), TEXT, spec("depth", 5000)], [0, 1, 0, 1]),
        ([spec("image", 1 << 20), BYTES, FeatureSpec("points", U1, (None, 3))], [0, 0, 0]),
        ([spec("pose", 28), TEXT], [0, 0]),
        ([BYTES, TEXT], [0, 1]),
    ],
)
def test_small_features_and_text_are_one_group(
    specs: list[FeatureSpec], expected: list[int]
) -> None:
    assert groups(*specs) == expected


def test_groups_that_are_given_stay_and_are_numbered_anew() -> None:
    specs = [spec("a", 1, 7), spec("b", 9000, 3), spec("c", 2, 7)]
    assert groups(*specs) == [0, 1, 0]
    named = {"b": {"group": 1}}
    assert groups(spec("a", 9000), spec("b", 9000), spec("c", 2), features=named) == [0, 1, 0]
    together = {"c": {"group": 0}}
    assert groups(spec("a", 9000), spec("c", 2), features=together) == [0, 0]


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        ([1], 1024),
        ([1024], 1024),
        ([1025], 512),
        ([1000, 1000, 49], 256),
        ([4095] * 3, 64),
        ([4096], 32),
        ([4095, 4096], 32),
        ([2 << 20], 16),
        ([3 << 20, 3 << 20], 8),
        ([25 << 20], 1),
    ],
)
def test_frames_a_chunk(tmp_path: Path, nbytes: list[int], expected: int) -> None:
    schema = Schema([spec(f"f{i}", n) for i, n in enumerate(nbytes)])
    frame = {name: np.zeros(feature.shape[0] or 0, "u1") for name, feature in schema.items()}
    one = {"f0": {"group": 0}}  # and all others with it
    with (
        SeqRecordWriter(tmp_path, schema=schema, features=one, codecs="fast") as writer,
        writer.episode("a") as episode,
    ):
        for _ in range(expected + 1):
            episode.append(frame)
    with seqrecord.open(tmp_path) as dataset:
        [group] = dataset.contents.index.groups
        assert group.num_frames.tolist() == [expected, 1]


def write(root: Path, num_frames: int, **options: Any) -> None:
    """`image` in one group; `pose` and `note`, which frames 5, 70 and 130 lack, in another."""
    with SeqRecordWriter(root, codecs="raw", **options) as writer, writer.episode("a") as episode:
        for number in range(num_frames):
            episode.append(frame(number))


def frame(number: int) -> dict[str, Any]:
    made = {
        "image": np.full((40, 41, 3), number % 256, np.uint8),
        "pose": np.full(7, number, np.float32),
        "note": f"frame {number} ä",
    }
    if number in (5, 70, 130):
        del made["note"]
    return made


def check(root: Path, num_frames: int) -> None:
    with seqrecord.open(root) as dataset:
        episode = dataset.episodes["a"]
        assert len(episode) == num_frames
        lacking = [number for number in (5, 70, 130) if number < num_frames]
        assert np.flatnonzero(~episode.present("note")).tolist() == lacking
        for number in {*range(0, num_frames, 9), *lacking, num_frames - 1}:
            got, want = episode[number], frame(number)
            assert list(got) == list(want)
            for name, value in want.items():
                np.testing.assert_array_equal(got[name], value)
    assert not seqrecord.verify(root).problems


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
    check(tmp_path, 200)
    with seqrecord.open(tmp_path) as dataset:
        assert [list(group.schema) for group in dataset.contents.index.groups] == [
            ["image"],
            ["pose", "note"],
        ]
        assert [group.num_frames.tolist() for group in dataset.contents.index.groups] == [
            image,
            small,
        ]


def test_a_long_episode_of_small_features_alone(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer, writer.episode("a") as episode:
        for number in range(2500):
            episode.append({"x": np.float64(number)} if number % 100 else {"y": number})
    with seqrecord.open(tmp_path) as dataset:
        (group,) = dataset.contents.index.groups
        assert group.num_frames.tolist() == [1024, 1024, 452]
        read = dataset.episodes["a"]
        assert np.flatnonzero(read.present("y")).tolist() == list(range(0, 2500, 100))
        x = read.read([n for n in range(2500) if n % 100], features=["x"])["x"]
        assert [int(value) for value in x] == [n for n in range(2500) if n % 100]
        assert read[2400] == {"y": 2400}
    assert not seqrecord.verify(tmp_path).problems


def test_chunks_that_take_no_room(tmp_path: Path) -> None:
    """Of frames that lack all features of a group, several after each other."""
    with SeqRecordWriter(tmp_path, schema=Schema([spec("image", 5000), spec("x", 1)])) as writer:
        for key in ("a", "b"):
            with writer.episode(key) as episode:
                for number in range(200):
                    frame = {"x": np.full(1, number, "u1")}
                    if number // 32 in (3, 6):
                        frame["image"] = np.full(5000, number, "u1")
                    episode.append(frame if number // 32 != 6 else {"image": frame["image"]})
    with seqrecord.open(tmp_path) as dataset:
        image, _ = dataset.contents.index.groups
        assert image.num_frames.tolist() == [32, 32, 32, 32, 32, 32, 8] * 2
        assert len(set(image.offset.tolist())) < 14
        for read in dataset.episodes.values():
            assert np.flatnonzero(read.present("image")).tolist() == [
                *range(96, 128),
                *range(192, 200),
            ]
            for number in range(200):
                assert set(read[number]) == {
                    *(["image"] if number // 32 in (3, 6) else []),
                    *(["x"] if number // 32 != 6 else []),
                }
                for value in read[number].values():
                    assert int(value.min()) == int(value.max()) == number
    assert not seqrecord.verify(tmp_path).problems


def test_chunks_of_groups_lie_between_each_other_with_tables_behind_their_pages(
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
    assert all(one[2] == other[0] for one, other in pairwise(places)), "nothing lies in between"


def test_kinds_and_units(tmp_path: Path) -> None:
    said = {
        "image": {"kind": "image"},
        "pose": {"kind": "pose", "unit": "m"},
        "note": {"kind": "text", "unit": None},
    }
    write(tmp_path, 3, features=said)
    with seqrecord.open(tmp_path) as dataset:
        assert [(s.kind, s.unit) for s in dataset.features.values()] == [
            ("image", None),
            ("pose", "m"),
            ("text", None),
        ]
    accepted: list[Any] = [{"pose": {"unit": "m"}}, {"image": {}}, said, None]
    for given in accepted:
        SeqRecordWriter(tmp_path, mode="append", features=given).close()
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
    for given, says in refused:
        with pytest.raises(SchemaError, match=says):
            SeqRecordWriter(tmp_path, mode="append", features=given)
    same = {"pose": {"group": 1}, "note": {"group": 1}}
    SeqRecordWriter(tmp_path, mode="append", features=same).close()


def test_what_is_said_of_features_that_frames_tell_of(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, features={"y": {"kind": "depth"}}) as writer:
        episode = writer.episode("a")
        episode.append({"x": 1})
        with pytest.raises(SchemaError, match="properties of an unknown feature"):
            episode.close()
        with writer.episode("b") as episode:
            episode.append({"y": 1})
            episode.append({"x": 1})
        assert writer.schema is not None
        assert writer.schema["y"].kind == "depth"


def test_frames_a_second(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path, fps=10) as writer:
        for key, fps in (("a", None), ("b", 29.97), ("c", np.float32(0.5))):
            with writer.episode(key, fps=fps) as episode:
                episode.append({"x": 1})
        for fps in (0, -1, float("nan"), float("inf"), True, "10"):
            with pytest.raises(SchemaError, match=r"fps|frames per second"):
                writer.episode("d", fps=fps)  # type: ignore[arg-type]
    with seqrecord.open(tmp_path) as dataset:
        assert dataset.contents.index.fps.tolist() == [10, 29.97, 0.5]
    with pytest.raises(SchemaError):
        SeqRecordWriter(tmp_path / "new", fps=-3)
    assert not (tmp_path / "new").exists()


# Text and bytes

VALUES = ["", "a", "Zürich 東京 \0 end", "x" * 5000]


@pytest.mark.parametrize("codec", ["raw", "fast", "balanced", "small"])
@pytest.mark.parametrize("given", [True, False])
def test_text_and_bytes_come_back(tmp_path: Path, codec: str, given: bool) -> None:
    schema = Schema([TEXT, BYTES]) if given else None
    blobs = [b"", b"a", bytearray(b"\0\1"), memoryview(b"abcdef")[::2]]
    with (
        SeqRecordWriter(tmp_path, schema=schema, codecs=codec) as writer,
        writer.episode("a") as episode,
    ):
        for text, blob in zip(VALUES, blobs, strict=True):
            episode.append({"note": text, "blob": blob})
        episode.append({"blob": np.frombuffer(b"xyz", "u1") if given else b"xyz"})
    with seqrecord.open(tmp_path) as dataset:
        read = dataset.episodes["a"]
        assert [read[i]["note"] for i in range(4)] == VALUES
        assert [read[i]["blob"] for i in range(5)] == [*map(bytes, blobs), b"xyz"]
        assert read.read([3, 0], features=["note"])["note"] == [VALUES[3], VALUES[0]]
        assert type(read[4]["blob"]) is bytes
        assert [str(feature) for feature in dataset.features.values()] == [
            "note: text",
            "blob: bytes",
        ]


def test_text_is_not_compressed_unless_asked_for() -> None:
    def codec(codecs: Any) -> Any:
        return stored(TEXT, codecs=codecs)["note"].codec

    assert codec(None) == codec("balanced") == codec("fast") == codec("raw") == ()
    assert codec("small") != ()
    assert codec({"note": [{"id": "zstd", "level": 3}]}) == ({"id": "zstd", "level": 3},)


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"note": b"abc"}, "expected: str; got: bytes"),
        ({"note": np.zeros(3, np.uint8)}, r"expected: str; got: uint8 \[3\]"),
        ({"note": 3}, "expected: str; got: int"),
        ({"note": "\ud800"}, "UTF-8"),
        ({"blob": "abc"}, "expected: bytes; got: str"),
        ({"blob": np.zeros((2, 2), np.uint8)}, r"got: uint8 \[2, 2\]"),
        ({"blob": np.zeros(2, np.int8)}, r"got: int8 \[2\]"),
        ({"blob": [1, 2]}, r"got: int64 \[2\]"),
        ({"state": "abc"}, "does not fit"),
        ({"state": b"abc"}, "does not fit"),
    ],
)
def test_what_is_no_text_and_no_bytes(tmp_path: Path, item: dict[str, Any], says: str) -> None:
    schema = Schema([TEXT, BYTES, spec("state", 3)])
    writer = SeqRecordWriter(tmp_path, schema=schema)
    episode = writer.episode("a")
    with pytest.raises(FrameError, match=says) as caught:
        episode.append(item)
    assert (caught.value.episode, caught.value.frame) == ("a", 0)
    assert caught.value.feature == next(iter(item))


def test_a_text_feature_is_not_one_of_bytes(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer, writer.episode("a") as episode:
        episode.append({"x": "text"})
    for value in ("bytes", "array"):
        other = Schema([FeatureSpec("x", U1, (None,), value=value)])
        with pytest.raises(SchemaError, match="other features"):
            SeqRecordWriter(tmp_path, mode="append", schema=other)


def test_strings_of_numpy_are_text_and_bytes(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path) as writer, writer.episode("a") as episode:
        episode.append({"x": np.str_("a"), "y": np.bytes_(b"b")})
    with seqrecord.open(tmp_path) as dataset:
        assert [feature.value for feature in dataset.features.values()] == ["text", "bytes"]
