"""RLDS: what TFDS has written, what others may write, and every way to be broken."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import RldsSource, Source
from tests.bags import png
from tests.lerobot_video_data import unpack as unpack_golden
from tests.rlds_data import SPLITS, episodes
from tests.source_faults import check_refused
from tests.tf_records import example, sequence_example, write_records

NUMBERS = ["action", "count", "is_first", "is_last", "observation.state", "observation.tactile"]
TRAIN = "arm-train.tfrecord-00000-of-00001"


def unpack(folder: Path) -> Path:
    (folder / "arm").mkdir(exist_ok=True)
    return unpack_golden(folder, "rlds").rename(folder / "arm" / "1.0.0")


def frames_of(source: Source, key: str) -> list[dict[str, Any]]:
    info = next(info for info in source.episodes() if info.key == key)
    return [dict(frame) for frame in source.frames(info)]


def check(source: Source) -> None:
    wanted = [(f"{s}/{i:06d}", n) for s, ns in SPLITS.items() for i, n in enumerate(ns)]
    assert [(info.key, info.num_frames) for info in source.episodes()] == wanted
    for split in SPLITS:
        for i, episode in enumerate(episodes(split)):
            frames = frames_of(source, f"{split}/{i:06d}")
            for frame, step in zip(frames, episode["steps"], strict=True):
                seen = step["observation"]
                for name in NUMBERS:
                    outer, _, last = name.rpartition(".")
                    value = (step[outer] if outer else step)[last]
                    np.testing.assert_array_equal(frame[name], value)
                    assert frame[name].dtype == np.asarray(value).dtype
                np.testing.assert_array_equal(frame["observation.wrist"], seen["wrist"])
                np.testing.assert_array_equal(frame["observation.depth"], seen["depth"][..., 0])
                assert np.abs(frame["observation.image"].astype(int) - seen["image"]).max() <= 3
                assert frame["language_instruction"] == step["language_instruction"]


def test_what_tfds_wrote(tmp_path: Path) -> None:
    source = open_source(unpack(tmp_path))
    for root in (tmp_path, tmp_path / "arm", tmp_path / "arm" / "1.0.0"):
        check(open_source(root))
    assert [str(spec) for spec in source.schema().values()] == [
        "action: float64 [2]",
        "count: int64 []",
        "is_first: bool []",
        "is_last: bool []",
        "language_instruction: text",
        "observation.depth: uint16 [6, 8]",
        "observation.image: uint8 [16, 24, 3]",
        "observation.state: float32 [3]",
        "observation.tactile: int16 [2, 4]",
        "observation.wrist: uint8 [6, 8, 3]",
        "reward: float32 []",
    ]
    assert source.schema()["action"].kind == "action"
    assert source.schema()["observation.wrist"].kind == "image"
    info = source.episodes()[1]
    assert {key: info.metadata[key] for key in ("split", "file", "episode_metadata")} == {
        "split": "train",
        "file": TRAIN,
        "episode_metadata": {"file_path": "/data/train/1.h5", "success": False, "weight": 0.25},
    }


# --- messages --------------------------------------------------------------------------------

INTS, FLOATS = st.integers(-(2**63), 2**63 - 1), st.floats(width=32, allow_nan=False)
VALUES: dict[str, Any] = {
    "int64": (INTS, "int64"),
    "small": (st.integers(0, 1), "bool"),
    "float32": (FLOATS, "float32"),
}


@given(st.integers(1, 20), st.integers(1, 3), st.booleans(), st.booleans(), st.data())
def test_examples(
    tmp_path_factory: pytest.TempPathFactory,
    steps: int,
    width: int,
    is_sequence: bool,
    chosen: bool,
    data: st.DataObject,
) -> None:
    """Of one list of a feature, or of a list a step; all features, or one that is chosen."""
    rows: dict[str, list[list[Any]]] = {
        name: [data.draw(st.lists(values, min_size=width, max_size=width)) for _ in range(steps)]
        for name, (values, _) in VALUES.items()
    }
    texts = data.draw(st.lists(st.text(max_size=300), min_size=steps, max_size=steps))
    lists = {f"steps/{name}": each for name, each in rows.items()}
    lists["steps/text"] = [[text.encode()] for text in texts]
    beside: dict[str, list[Any]] = {data.draw(st.text(max_size=20)): [b"x" * 9]}
    flat = {name: [value for row in each for value in row] for name, each in lists.items()}
    record = sequence_example(beside, lists) if is_sequence else example(beside | flat)
    about = {name: tensor(dtype, width) for name, (_, dtype) in VALUES.items()}
    root = write_set(
        tmp_path_factory.getbasetemp() / "drawn", [record], {**about, "text": {"text": {}}}
    )
    source = open_source(root, features=["float32"] if chosen else None)
    frames = frames_of(source, "train/000000")
    assert len(frames) == steps
    for number, frame in enumerate(frames):
        assert frame.keys() == ({"float32"} if chosen else {*rows, "text"})
        assert all(frame[n].tolist() == rows[n][number] for n in rows if n in frame)
        assert chosen or frame["text"] == texts[number]


def test_only_what_is_wanted_of_an_example_is_copied(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {"steps/state": [1.0, 2.0], "more": [bytes(20 << 20)]}
    source = open_source(write_set(tmp_path, [example(values)]))
    tracemalloc.start()
    try:
        [info] = source.episodes()
        assert tracemalloc.get_traced_memory()[1] < 5 << 20  # nothing of `more`
        assert len(list(source.frames(info))) == 1
        assert tracemalloc.get_traced_memory()[1] < 30 << 20  # the record, once
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_bytes_that_are_no_example(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = write_set(tmp_path_factory.getbasetemp() / "none", [data])
    with pytest.raises(SourceError):
        frames_of(open_source(root), "train/000000")


def test_any_changed_byte_or_end_is_found(tmp_path: Path) -> None:
    rows = [[1.0, 2.0], [3.0, 4.0]]
    write_set(tmp_path, [example({"steps/state": row}) for row in rows])
    path = tmp_path / "a-train.tfrecord-00000-of-00001"
    whole = path.read_bytes()
    for place in range(1, len(whole)):
        for broken in (whole[:place], whole[:place] + b"%" + whole[place + 1 :]):
            path.write_bytes(broken)
            source, got = RldsSource(tmp_path), []
            try:
                for info in source.episodes():
                    got += [np.asarray(frame["state"]).tolist() for frame in source.frames(info)]
            except SourceError as error:
                assert error.offset is not None  # noqa: PT017 - or it is right
            else:
                assert whole.startswith(broken)  # it ends between two records
                assert len(broken) == len(whole) // 2
            assert got == rows[: len(got)]


# --- datasets -------------------------------------------------------------------------------


def features_json(steps: dict[str, Any], **episode: Any) -> str:
    name = "tensorflow_datasets.core.features"
    inner = {"pythonClassName": f"{name}.FeaturesDict", "featuresDict": {"features": steps}}
    outer = {"steps": {"pythonClassName": f"{name}.Dataset", "sequence": {"feature": inner}}}
    return json.dumps({"featuresDict": {"features": {**outer, **episode}}})


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    return {"tensor": {"dtype": dtype, "shape": {"dimensions": [*map(str, shape)]},
                       "encoding": encoding}}  # fmt: skip


STATE = {"state": tensor("float32", 2)}


def write_set(root: Path, records: Sequence[bytes], steps: dict[str, Any] | None = None) -> Path:
    root.mkdir(exist_ok=True)
    (root / "features.json").write_text(features_json(STATE if steps is None else steps))
    write_records(root / "a-train.tfrecord-00000-of-00001", records)
    return root


def test_dtypes(tmp_path: Path) -> None:
    steps = {
        "b": tensor("bool"), "u": tensor("uint64"), "i": tensor("int8", 2),
        "h": tensor("float16"), "raw": tensor("uint16", 3, encoding="bytes"),
        "class": {"classLabel": {"numClasses": "3"}},
        "box": {"boundingBox": {"shape": {"dimensions": ["4"]}, "dtype": "float32"}},
    }  # fmt: skip
    values: dict[str, list[Any]] = {
        "steps/b": [1, 0], "steps/u": [-1, 5], "steps/i": [-128, 127, 0, 1],
        "steps/h": [0.5, 1.5], "steps/class": [2, 0], "steps/box": [*map(float, range(8))],
        "steps/raw": [np.array(each, "<u2").tobytes() for each in ([1, 2, 65535], [4, 5, 6])],
    }  # fmt: skip
    source = open_source(write_set(tmp_path, [example(values)], steps))
    one, two = frames_of(source, "train/000000")
    assert (one["b"].dtype, bool(one["b"]), bool(two["b"])) == (np.bool_, True, False)
    assert int(one["u"]) == 2**64 - 1
    assert (one["i"].tolist(), two["i"].tolist()) == ([-128, 127], [0, 1])
    assert (one["h"].dtype, two["raw"].tolist()) == (np.float16, [4, 5, 6])
    assert (one["class"], two["box"].tolist()) == (2, [4, 5, 6, 7])


def test_labels_are_texts_where_they_have_names(tmp_path: Path) -> None:
    """Their numbers are places in a list of the dataset's own; TFDS calls its file so."""
    label = {"classLabel": {"numClasses": "3"}}
    steps = {"observation": {"featuresDict": {"features": {"tool": label}}}}
    values: dict[str, list[Any]] = {"steps/observation/tool": [2, 0, -1], "room": [1]}
    write_set(tmp_path, [example(values)])
    (tmp_path / "features.json").write_text(features_json(steps, room=label))
    source = open_source(tmp_path)
    assert [f["observation.tool"] for f in frames_of(source, "train/000000")] == [2, 0, -1]
    assert source.episodes()[0].metadata["room"] == 1
    (tmp_path / "steps-observation-tool.labels.txt").write_text("spoon\nfork\nbig knife\n")
    (tmp_path / "room.labels.txt").write_text("hall\nkitchen\ncellar\n")
    source = open_source(tmp_path)
    assert str(source.schema()["observation.tool"]) == "observation.tool: text"
    said = [frame["observation.tool"] for frame in frames_of(source, "train/000000")]
    assert said == ["big knife", "spoon", ""]  # -1 is no label
    assert source.episodes()[0].metadata["room"] == "kitchen"
    write_set(tmp_path, [example(values | {"steps/observation/tool": [0, 3, 0]})])
    (tmp_path / "features.json").write_text(features_json(steps, room=label))
    with pytest.raises(
        SourceError, match=r"steps/observation/tool: expected labels below 3, got 3"
    ):
        frames_of(open_source(tmp_path), "train/000000")


def test_shards(tmp_path: Path) -> None:
    write_set(tmp_path, [])
    (tmp_path / "a-train.tfrecord-00000-of-00001").unlink()
    number = 0
    for shard, count in enumerate((2, 0, 3)):
        records = []
        for _ in range(count):
            records.append(example({"steps/state": [float(number), 0.0]}))
            number += 1
        write_records(tmp_path / f"a-train.tfrecord-{shard:05d}-of-00003", records)
    write_records(
        tmp_path / "a-test.tfrecord-00000-of-00001", [example({"steps/state": [9.0] * 4})]
    )
    source = open_source(tmp_path)
    keys = [f"train/{i:06d}" for i in range(5)]
    assert [info.key for info in source.episodes()] == [*keys, "test/000000"]
    for i, key in enumerate(keys):
        assert frames_of(source, key)[0]["state"].tolist() == [i, 0]
    (tmp_path / "a-train.tfrecord-00001-of-00003").unlink()
    with pytest.raises(
        SourceError, match=r"missing shard; download it again; .*expected: train, 1 of 3"
    ):
        source.episodes()


# --- ways to be broken -----------------------------------------------------------------------


def _flip(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "bad", "match"),
    [
        (_flip(100), ["train/000000"], "checksum mismatch of a record; .*offset: 12"),
        (_flip(0), ["train/000000", "train/000001"], "checksum mismatch of a record's length"),
        (lambda d: d[:-1], ["train/000001"], "truncated TFRecord file; .*expected: a record of"),
        (lambda d: d[: -(len(d) - 5000)], ["train/000001"], "truncated TFRecord file"),
        (lambda d: d[: len(d) // 4], ["train/000000", "train/000001"], "truncated TFRecord"),
        (lambda d: d + b"12345", ["train/000002"], "truncated TFRecord file"),
        (lambda d: b"", ["train/000000", "train/000001"], "truncated TFRecord file"),
    ],
)
def test_damaged_files(
    tmp_path: Path, damage: Callable[[bytes], bytes], bad: list[str], match: str
) -> None:
    root = unpack(tmp_path)
    (root / TRAIN).write_bytes(damage((root / TRAIN).read_bytes()))
    source = open_source(root)
    keys = [info.key for info in source.episodes()]
    assert keys == [*sorted({"train/000000", "train/000001", *bad}), "val/000000"]
    check_refused(source, bad, match, file=root / TRAIN)


GREY, BOMB = np.zeros((2, 3, 3), np.uint8), zlib.compress(bytes(50 << 20))


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"steps/state": [1.0, 2.0, 3.0]}, "steps/state: expected a multiple of 2 values, got 3"),
        ({"steps/state": [1, 2]}, "steps/state: expected float32, got int64"),
        ({"steps/state": [b"a", b"b"]}, "steps/state: expected float32, got bytes"),
        ({"steps/other": [1.0]}, "the record lacks steps/state"),
        ({"steps/small": [1, 2]}, "differ in their number of steps: .*small.: 2"),
        ({"steps/small": [200]}, "steps/small: a value is out of range of int8"),
        ({"steps/image": [b"GIF89a"]}, "neither a PNG nor a JPEG image; .*image; frame: 0"),
        (
            {"steps/image": [png(GREY)]},
            r"differs from the first one in dtype or shape; .*got: uint8 \[2, 3, 3\]",
        ),
        ({"steps/image": [1]}, "steps/image: expected encoded images, got numbers"),
        ({"steps/packed": [b"1234"]}, "tensor is not zlib data"),
        ({"steps/packed": [BOMB]}, r"a tensor of 4 bytes, got 5 or more"),
        ({"steps/say": [b"\xff"]}, r"can't decode byte 0xff"),
        ({"steps/say": [7]}, r"steps/say: expected texts, got numbers"),
    ],
)
def test_records_that_are_not_as_declared(
    tmp_path: Path, record: dict[str, list[Any]], match: str
) -> None:
    steps = {
        **STATE, "small": tensor("int8"), "packed": tensor("uint8", 4, encoding="zlib"),
        "image": {"image": {"dtype": "uint8", "shape": {"dimensions": ["2", "2", "3"]}}},
        "say": {"text": {}},
    }  # fmt: skip
    good: dict[str, list[Any]] = {
        "steps/state": [1.0, 2.0], "steps/small": [3], "steps/image": [png(GREY[:, :2])],
        "steps/packed": [zlib.compress(b"abcd")], "steps/say": ["ö".encode()],
    }  # fmt: skip
    bad = record if "steps/other" in record else {**good, **record}
    source = open_source(write_set(tmp_path, [example(good), example(bad)], steps))
    [frame] = frames_of(source, "train/000000")
    assert (frame["packed"].tobytes(), frame["say"]) == (b"abcd", "ö")
    check_refused(source, ["train/000001"], match)


def test_what_goes_to_the_metadata(tmp_path: Path) -> None:
    beside = {
        "a": tensor("int32"), "a/b": tensor("int32"), "c/d": {"text": {}}, "long": {"text": {}},
        "many": tensor("float32", 65), "few": tensor("float32", 2), "nan": tensor("float32"),
        "wide": tensor("uint64"), "image": {"image": {"dtype": "uint8"}},
    }  # fmt: skip
    values: dict[str, list[Any]] = {
        "steps/state": [1.0, 2.0], "a": [1], "a/b": [2], "c/d": [b"\xffd"], "long": [b"x" * 5000],
        "many": [0.0] * 65, "few": [0.5, 1.0], "nan": [float("nan")], "wide": [-1],
        "image": [b""],
    }  # fmt: skip
    write_set(tmp_path, [example(values), example({**values, "a": [2**40]})])
    (tmp_path / "features.json").write_text(features_json(STATE, **beside))
    source = open_source(tmp_path)
    one, two = source.episodes()
    assert {k: v for k, v in one.metadata.items() if k not in ("split", "file", "offset")} == {
        "a": 1, "c": {"d": "\ufffdd"}, "few": [0.5, 1.0], "wide": 2**64 - 1,
    }  # fmt: skip
    assert two.metadata["a"] == {"b": 2}  # an int32 does not hold the other
    assert two.metadata["few"] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "invalid features.json"),
        ("[]", "invalid features.json; .*is not the description of a feature"),
        ('{"featuresDict": 3}', "featuresDict of the file is not an object"),
        (json.dumps({"featuresDict": {"features": {"image": {"image": {}}}}}), "without episodes"),
        (features_json({"a": {"tensor": {"dtype": "x", "shape": {}}}}), "invalid dtype of steps/a"),
        (features_json({"a": tensor("uint8", 2**20, 2**20)}), "steps/a is too large"),
        (
            features_json({"a": tensor("float32", -1)}),
            r"unsupported kinds of features.*got: a \(tens",
        ),
        (features_json({"a": {"audio": {}}}), r"unsupported kinds of features.*got: a \(audio\)"),
        (features_json({"a": {"sequence": {"feature": tensor("int8")}}}), r"a \(sequence\)"),
        (features_json({"a": {"image": {"dtype": "float32"}}}), r"a \(image of float32\)"),
        (features_json({"a/b": tensor("int8"), "a.b": tensor("int8")}), "duplicate feature names"),
    ],
)
def test_a_broken_features_json(tmp_path: Path, text: str, match: str) -> None:
    write_set(tmp_path, [example({"steps/a": [1.0]})])
    (tmp_path / "features.json").write_text(text)
    with pytest.raises(SourceError, match=match):
        open_source(tmp_path, format="rlds").schema()


def test_a_broken_dataset_info(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    info = json.loads((root / "dataset_info.json").read_text())

    def refused(change: dict[str, Any] | str, match: str) -> None:
        text = change if isinstance(change, str) else json.dumps({**info, **change})
        (root / "dataset_info.json").write_text(text)
        with pytest.raises(SourceError, match=match):
            open_source(root).episodes()

    refused("{", "invalid dataset_info.json")
    refused({"splits": [{"shardLengths": ["x"]}]}, "invalid dataset_info.json")
    refused(
        {"fileFormat": "array_record"},
        "unsupported file format .*; .*expected: tfrecord; got: 'arr",
    )
    more = {"name": "train", "shardLengths": ["1", "1"]}
    refused({"splits": [more]}, "number of shards differs .*expected: 2 of train; got: 1")
    refused({"splits": [{"name": "more", "shardLengths": ["4"]}]}, "missing shards of a split")


def test_two_datasets_in_a_folder(tmp_path: Path) -> None:
    unpack(tmp_path)
    (tmp_path / "arm" / "1.0.1").mkdir()
    (tmp_path / "arm" / "1.0.1" / "features.json").write_text("{}")
    with pytest.raises(SourceError, match=r"several TFDS datasets; .*got: 1.0.0, 1.0.1"):
        open_source(tmp_path / "arm").schema()
