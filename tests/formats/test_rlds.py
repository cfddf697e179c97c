"""RLDS: datasets written by TFDS, by other writers, and all kinds of broken ones."""

from __future__ import annotations

import json
import re
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import RldsSource, Source, inventory_of
from tests.formats.tf_records import example, sequence_example, write_records
from tests.kit.bags import png
from tests.kit.lerobot_video_data import unpack as unpack_golden
from tests.kit.source_faults import check_refused, flipped, frames_of

TRAIN = "arm-train.tfrecord-00000-of-00001"


def unpack(folder: Path) -> Path:
    (folder / "arm").mkdir(exist_ok=True)
    return unpack_golden(folder, "rlds").rename(folder / "arm" / "1.0.0")


def test_a_dataset_written_by_tfds(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    for place in (tmp_path, tmp_path / "arm", root):
        keys = [info.key for info in open_source(place).episodes()]
        assert keys == ["train/000000", "train/000001", "val/000000"]
    source = open_source(root)
    info = source.episodes()[1]
    assert {key: info.metadata[key] for key in ("file", "episode_metadata")} == {
        "file": TRAIN,
        "episode_metadata": {"file_path": "/data/train/1.h5", "success": False, "weight": 0.25},
    }
    assert [info.split for info in source.episodes()] == ["train", "train", "val"]
    (tmp_path / "arm" / "1.0.1").mkdir()
    (tmp_path / "arm" / "1.0.1" / "features.json").write_text("{}")
    with pytest.raises(SourceError, match=r"several TFDS datasets; .*got: 1.0.0, 1.0.1"):
        open_source(tmp_path / "arm").schema()


def test_episodes_that_are_all_in_train_have_no_split(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    for name in ("dataset_info.json", "arm-val.tfrecord-00000-of-00001"):
        (root / name).unlink()
    assert [info.split for info in open_source(root).episodes()] == [None, None]


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
    """One list per feature or one per step; all features, or a selected one."""
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
    features = {name: tensor(dtype, width) for name, (_, dtype) in VALUES.items()}
    root = write_set(
        tmp_path_factory.getbasetemp() / "drawn", [record], {**features, "text": {"text": {}}}
    )
    source = open_source(root, features=["float32"] if chosen else None)
    frames = frames_of(source, "train/000000")
    assert len(frames) == steps
    for number, frame in enumerate(frames):
        assert frame.keys() == ({"float32"} if chosen else {*rows, "text"})
        assert all(frame[n].tolist() == rows[n][number] for n in rows if n in frame)
        assert chosen or frame["text"] == texts[number]


def test_only_selected_features_of_an_example_are_copied(tmp_path: Path) -> None:
    values: dict[str, list[Any]] = {"steps/state": [1.0, 2.0], "more": [bytes(20 << 20)]}
    source = open_source(write_set(tmp_path, [example(values)]))
    tracemalloc.start()
    try:
        [info] = source.episodes()
        assert tracemalloc.get_traced_memory()[1] < 5 << 20  # `more` is not copied
        assert len(list(source.frames(info))) == 1
        assert tracemalloc.get_traced_memory()[1] < 30 << 20  # the record once
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_bytes_without_an_example(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = write_set(tmp_path_factory.getbasetemp() / "none", [data])
    with pytest.raises(SourceError):
        frames_of(open_source(root), "train/000000")


def test_any_changed_byte_or_truncation_is_found(tmp_path: Path) -> None:
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
                assert error.offset is not None  # noqa: PT017 - or all is read
            else:
                assert whole.startswith(broken)  # cut between two records
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


def test_labels_with_names_become_texts(tmp_path: Path) -> None:
    """Names are in a list of the dataset; TFDS uses these file names."""
    label, tool = {"classLabel": {"numClasses": "3"}}, "observation.tool"
    steps = {"observation": {"featuresDict": {"features": {"tool": label}}}}

    def opened(*numbers: int) -> Source:
        values: dict[str, list[Any]] = {"steps/observation/tool": [*numbers], "room": [1]}
        write_set(tmp_path, [example(values)])
        (tmp_path / "features.json").write_text(features_json(steps, room=label))
        return open_source(tmp_path)

    source = opened(2, 0, -1)
    assert [frame[tool] for frame in frames_of(source)] == [2, 0, -1]
    assert source.episodes()[0].metadata["room"] == 1
    (tmp_path / "steps-observation-tool.labels.txt").write_text("spoon\nfork\nbig knife\n")
    (tmp_path / "room.labels.txt").write_text("hall\nkitchen\ncellar\n")
    source = opened(2, 0, -1)
    assert str(source.schema()[tool]) == f"{tool}: text"
    expected = ["big knife", "spoon", ""]  # -1 is no label
    assert [frame[tool] for frame in frames_of(source)] == expected
    assert source.episodes()[0].metadata["room"] == "kitchen"
    with pytest.raises(SourceError, match=r"observation/tool: expected labels below 3, got 3"):
        frames_of(opened(0, 3, 0))


def test_shards(tmp_path: Path) -> None:
    def records(*numbers: int) -> list[bytes]:
        return [example({"steps/state": [float(number), 0.0]}) for number in numbers]

    write_set(tmp_path, [])
    (tmp_path / "a-train.tfrecord-00000-of-00001").unlink()
    for shard, numbers in enumerate(((0, 1), (), (2, 3, 4))):
        write_records(tmp_path / f"a-train.tfrecord-{shard:05d}-of-00003", records(*numbers))
    write_records(tmp_path / "a-test.tfrecord-00000-of-00001", records(9))
    source = open_source(tmp_path)
    keys = [f"train/{i:06d}" for i in range(5)]
    assert [info.key for info in source.episodes()] == [*keys, "test/000000"]
    for i, key in enumerate(keys):
        assert frames_of(source, key)[0]["state"].tolist() == [i, 0]
    (tmp_path / "a-train.tfrecord-00001-of-00003").unlink()
    missing = r"missing shards, .*expected: train: 3 files; got: 2 files, without number 1"
    with pytest.raises(SourceError, match=missing):
        source.episodes()


# --- broken datasets -------------------------------------------------------------------------


def test_a_bad_first_record_of_the_only_shard(tmp_path: Path) -> None:
    """Later records give the schema."""
    steps = {
        **STATE,
        "image": {"image": {"dtype": "uint8", "shape": {"dimensions": ["2", "2", "3"]}}},
    }
    good: dict[str, list[Any]] = {"steps/state": [1.0, 2.0], "steps/image": [png(GREY[:, :2])]}
    for image in ([b"GIF89a"], [b""], [1]):
        records = [example(good | {"steps/image": image}), example(good)]
        source = open_source(write_set(tmp_path, records, steps))
        check_refused(source, ["train/000000"])
    records = [example(good), example(good)]
    root = write_set(tmp_path, records, steps)
    [shard] = root.glob("*.tfrecord-*")
    shard.write_bytes(flipped(30)(shard.read_bytes()))
    check_refused(open_source(root), ["train/000000"], "checksum mismatch of a record;")


def test_images_of_an_unsupported_format_are_left_out(tmp_path: Path) -> None:
    image = {"image": {"dtype": "uint8", "shape": {"dimensions": ["2", "2", "3"]}}}
    avif = b"\0\0\0\x20ftypavif" + bytes(40)
    record = example({"steps/state": [1.0, 2.0], "steps/image": [avif]})
    root = write_set(tmp_path, [record], {**STATE, "image": image})
    source = open_source(root)
    [frame] = frames_of(source)
    assert [*frame] == [*source.schema()] == ["state"]
    assert any("got: AVIF" in str(row) for row in inventory_of(source).left_out_data)
    with pytest.raises(SourceError, match=r"unsupported image format; .*feature: image; .*PNG"):
        open_source(root, features=["image"]).schema()


def test_damaged_files(tmp_path: Path) -> None:
    root, one, two = unpack(tmp_path), "train/000000", "train/000001"
    whole = (root / TRAIN).read_bytes()
    for data, bad, match in (
        (flipped(100)(whole), [one], "checksum mismatch of a record; .*offset: 12"),
        (flipped(0)(whole), [one, two], "checksum mismatch of a record's length"),
        (whole[:-1], [two], "truncated TFRecord file; .*expected: a record of"),
        (whole[:5000], [two], "truncated TFRecord file"),
        (whole[: len(whole) // 4], [one, two], "truncated TFRecord"),
        (whole + b"12345", ["train/000002"], "truncated TFRecord file"),
        (b"", [one, two], "truncated TFRecord file"),
    ):
        (root / TRAIN).write_bytes(data)
        source = open_source(root)
        keys = [info.key for info in source.episodes()]
        assert keys == [*sorted({one, two, *bad}), "val/000000"]
        check_refused(source, bad, match, file=root / TRAIN)


GREY, BOMB = np.zeros((2, 3, 3), np.uint8), zlib.compress(bytes(1 << 20), 1)


WRONG: list[tuple[dict[str, list[Any]], str]] = [
    ({"state": [1.0, 2.0, 3.0]}, "steps/state: expected a multiple of 2 values, got 3"),
    ({"state": [1, 2]}, "steps/state: expected float32, got int64"),
    ({"state": [b"a", b"b"]}, "steps/state: expected float32, got bytes"),
    ({"other": [1.0]}, "the record lacks steps/state"),
    ({"small": [1, 2]}, "differ in their number of steps: .*small.: 2"),
    ({"small": [200]}, "steps/small: a value is out of range of int8"),
    ({"image": [b"GIF89a"]}, "neither a PNG nor a JPEG image; .*image; frame: 0"),
    ({"image": [png(GREY)]}, r"differs from the first one .*got: uint8 \[2, 3, 3\]"),
    ({"image": [1]}, "steps/image: expected encoded images, got numbers"),
    ({"packed": [b"1234"]}, "tensor is not zlib data"),
    ({"packed": [BOMB]}, r"a tensor of 4 bytes, got 5 or more"),
    ({"text": [b"\xff"]}, r"can't decode byte 0xff"),
    ({"text": [7]}, r"steps/text: expected texts, got numbers"),
]


def test_records_that_differ_from_the_declaration(tmp_path: Path) -> None:
    steps = {
        **STATE, "small": tensor("int8"), "packed": tensor("uint8", 4, encoding="zlib"),
        "image": {"image": {"dtype": "uint8", "shape": {"dimensions": ["2", "2", "3"]}}},
        "text": {"text": {}},
    }  # fmt: skip
    good: dict[str, list[Any]] = {
        "state": [1.0, 2.0], "small": [3], "image": [png(GREY[:, :2])],
        "packed": [zlib.compress(b"abcd")], "text": ["ö".encode()],
    }  # fmt: skip
    for wrong, match in WRONG:
        bad = wrong if "other" in wrong else good | wrong
        records = [example({f"steps/{n}": v for n, v in each.items()}) for each in (good, bad)]
        source = open_source(write_set(tmp_path, records, steps))
        [frame] = frames_of(source)
        assert (frame["packed"].tobytes(), frame["text"]) == (b"abcd", "ö")
        check_refused(source, ["train/000001"], match)


def test_episode_features_in_the_metadata(tmp_path: Path) -> None:
    nan = float("nan")
    beside: dict[str, tuple[dict[str, Any], list[Any]]] = {
        "a": (tensor("int32"), [1]), "a/b": (tensor("int32"), [2]),
        "c/d": ({"text": {}}, [b"\xffd"]), "long": ({"text": {}}, [b"x" * 5000]),
        "many": (tensor("float32", 65), [0.0] * 65), "few": (tensor("float32", 2), [0.5, 1.0]),
        "nan": (tensor("float32"), [nan]), "wide": (tensor("uint64"), [-1]),
        "image": ({"image": {"dtype": "uint8"}}, [b""]),
        "split": ({"text": {}}, [b"odd"]), "file": ({"text": {}}, [b"mine"]),
    }  # fmt: skip
    values = {"steps/state": [1.0, 2.0], **{name: value for name, (_, value) in beside.items()}}
    write_set(tmp_path, [example(values), example({**values, "a": [2**40]})])
    description = features_json(STATE, **{name: feature for name, (feature, _) in beside.items()})
    (tmp_path / "features.json").write_text(description)
    one, two = open_source(tmp_path).episodes()
    assert {k: v for k, v in one.metadata.items() if k not in ("file", "offset")} == {
        "a": 1, "c": {"d": "\ufffdd"}, "few": [0.5, 1.0], "wide": 2**64 - 1, "split": "odd",
    }  # fmt: skip
    assert two.metadata["a"] == {"b": 2}  # 2^40 is no int32
    assert two.metadata["few"] == [0.5, 1.0]
    left_out = {row.pattern: row for row in inventory_of(open_source(tmp_path)).left_out}
    row = left_out["episode feature file"]
    assert (row.count, row.reason) == (
        2,
        "the metadata has the place of the record under its name",
    )


BROKEN_FEATURES: list[tuple[str | dict[str, Any], str]] = [
    ("", "invalid features.json"),
    ("[]", "invalid features.json; .*is not the description of a feature"),
    ('{"featuresDict": 3}', "featuresDict of the file is not an object"),
    (json.dumps({"featuresDict": {"features": {"image": {"image": {}}}}}), "without episodes"),
    ({"a": {"tensor": {"dtype": "x", "shape": {}}}}, "invalid dtype of steps/a"),
    ({"a": tensor("uint8", 2**20, 2**20)}, "steps/a is too large"),
    ({"a": tensor("float32", -1)}, r"unsupported kind of feature.*got: a \(tens"),
    ({"a": tensor("bfloat16", 4)}, r"unsupported kind of feature.*got: a \(tensor of bfloat16\)"),
    ({"a": {"audio": {}}}, r"unsupported kind of feature.*got: a \(audio\)"),
    ({"a": {"sequence": {"feature": tensor("int8")}}}, r"a \(sequence\)"),
    ({"a": {"image": {"dtype": "float32"}}}, r"a \(image of float32\)"),
    ({"a/b": tensor("int8"), "a.b": tensor("int8")}, "duplicate feature names"),
]


def test_broken_description_files(tmp_path: Path) -> None:
    write_set(tmp_path / "set", [example({"steps/a": [1.0]})])
    for value, match in BROKEN_FEATURES:
        text = value if isinstance(value, str) else features_json(value)
        (tmp_path / "set" / "features.json").write_text(text)
        with pytest.raises(SourceError, match=match):
            open_source(tmp_path / "set", format="rlds").schema()
    root = unpack(tmp_path)
    features = (root / "features.json").read_text()
    for size in ("1e400", "null", "[]", "9" * 400):
        text = re.sub(r'"dimensions": \[[^\]]*', f'"dimensions": [{size}', features)
        (root / "features.json").write_text(text)
        with pytest.raises(SourceError, match=r"invalid features\.json"):
            open_source(root, format="rlds").schema()
    (root / "features.json").write_text(features)
    info = json.loads((root / "dataset_info.json").read_text())
    for change, match in (
        ({"splits": [{"shardLengths": ["x"]}]}, "invalid dataset_info.json"),
        ({"splits": [{"name": "train", "shardLengths": [1e400]}]}, "invalid .*infinity"),
        ({"splits": [{"name": "train", "shardLengths": ["9" * 400]}]}, "of more than 1048576 rec"),
        ({"splits": [{"name": "train", "numShards": 1e400}]}, "invalid .*infinity"),
        ({"fileFormat": "array_record"}, "unsupported file format .*expected: tfrecord; got: 'arr"),
        (
            {"splits": [{"name": "train", "shardLengths": ["1", "1"]}]},
            "missing shards, .*expected: train: 2 files, 2 records; got: 1 file",
        ),
        ({"splits": [{"name": "more", "shardLengths": ["4"]}]}, "missing shards, .*got: 0 files"),
        ({"splits": [{"name": "train", "numShards": "9999999999"}]}, "more than 1048576 shards"),
    ):
        (root / "dataset_info.json").write_text(json.dumps(info | change))
        with pytest.raises(SourceError, match=match):
            open_source(root).episodes()
    (root / "dataset_info.json").write_text("{")
    with pytest.raises(SourceError, match="invalid dataset_info"):
        open_source(root).episodes()
