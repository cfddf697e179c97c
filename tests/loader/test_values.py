"""Texts, bytes, arrays of varying shapes and metadata in clips and batches of all loaders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import (
    ClipError,
    FeatureSpec,
    Schema,
    SeqRecordMapDataset,
    SeqRecordPipe,
)
from seqrecord.errors import CodecError
from tests.kit.clip_data import begun, minimum_memory, resumed
from tests.kit.datasets import columns, write_dataset, written_once
from tests.loader.clip_model import GROUPS, LENGTHS, Case, metadata_of, stored_frame, write_all

U1, F4 = np.dtype("u1"), np.dtype("<f4")
FEATURES = ["image", "note", "imu", "blob", "grid", "id"]
PADDED: dict[str, Any] = {"imu": "pad", "grid": (3, 4)}
TAKERS: list[Any] = [SeqRecordPipe, SeqRecordMapDataset]
CLIPS = sum(length - 1 for length in LENGTHS)  # of two frames


path = written_once(write_all, GROUPS)


def make(take: Any, path: Path, **options: Any) -> Any:
    return take(path, **{"clip_len": 2, "features": FEATURES, **options})


def every(loader: Any) -> list[Any]:
    if isinstance(loader, SeqRecordMapDataset):
        return list(loader.__getitems__(range(len(loader))))
    return list(loader)


def test_names_shapes_and_padding(path: Path) -> None:
    """Masks follow their features; padding has the length that the selected episodes need."""
    pipe = make(SeqRecordPipe, path, batch_size=2, ragged=PADDED, metadata=["rate"])
    features = ["image", "note", "imu", "imu_mask", "blob", "grid", "grid_mask", "id"]
    assert list(next(iter(pipe))) == [*features, "episode", "start", "rate"]
    assert "imu: float32 [2, ?, 6]" in repr(make(SeqRecordPipe, path))
    shown = repr(make(SeqRecordPipe, path, ragged={"imu": "pad"}))
    assert "imu: float32 [2, 4, 6]" in shown
    assert "note: text" in shown
    (clip,) = SeqRecordPipe(path, clip_len=2, features=["imu"], episodes="lab/2", ragged="pad")
    assert clip["imu"].shape == (2, 2, 6)
    assert clip["imu_mask"].tolist() == [[True, False], [True, True]]


def test_padding_of_arrays_that_are_all_empty(tmp_path: Path) -> None:
    """They are padded to one row, which the mask marks as padding."""
    frames = [{"imu": np.zeros((0, 6), np.float32)} for _ in range(3)]
    schema = Schema([FeatureSpec("imu", F4, (None, 6))])
    write_dataset(tmp_path / "records", {"e": frames}, schema=schema)
    [clip] = SeqRecordPipe(tmp_path / "records", clip_len=3, ragged="pad")
    assert clip["imu"].shape == (3, 1, 6)
    assert not clip["imu_mask"].any()


def test_a_clip_is_not_changed_by_another_of_the_same_call(path: Path) -> None:
    case = Case({"clip_len": 3, "features": FEATURES, "metadata": ["arm"]})
    for clip in SeqRecordMapDataset(path, **case.options).__getitems__([0, 1, 0]):
        case.check(clip)
        assert clip["arm"] == metadata_of(0)["arm"]
        for tensor in clip["imu"]:
            tensor.fill_(-1)
        clip["arm"][1]["left"] = "changed"
        clip["arm"].append("more")


def test_a_state_is_resumed_in_another_form(path: Path) -> None:
    case = Case({"clip_len": 3, "batch_size": 4, "features": FEATURES, "ragged": PADDED})
    options: Any = {"clip_len": 3, "batch_size": 4, "features": FEATURES, "seed": 5}
    first = SeqRecordPipe(path, **options)
    iterator = begun(first, 2)
    again = SeqRecordPipe(path, **options, ragged=PADDED)
    rest = list(resumed(again, first.state_dict()))
    assert [batch["start"].tolist() for batch in rest] == [b["start"].tolist() for b in iterator]
    for batch in rest:
        for clip in case.clips_in(batch):
            case.check(clip)


def test_batches_of_nested_tensors_reuse_memory(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=["imu"], ragged="nested")
    seen = [batch["imu"].values().untyped_storage().data_ptr() for _ in range(3) for batch in pipe]
    assert len(set(seen)) <= 6 < len(seen)


# ---- functions


def test_a_frame_transform_sees_texts_and_may_give_them(path: Path) -> None:
    """And images for crops."""

    def change(item: dict[str, Any]) -> dict[str, Any]:
        assert type(item["note"]) is str
        assert type(item["blob"]) is bytes
        image, count = np.repeat(item["image"], 2, axis=1), np.array(len(item["blob"]))
        return {**item, "note": item["note"][::-1], "count": count, "image": image}

    options = {"frame_transform": change, "clip_transform": seqrecord.CenterCrop((2, 4))}
    for take in TAKERS:
        clips = every(make(take, path, features=["image", "note", "blob", "id"], **options))
        assert len(clips) == CLIPS
        for clip in clips:
            frames = [stored_frame(*number.tolist()) for number in clip["id"]]
            assert list(clip["note"]) == [frame["note"][::-1] for frame in frames]
            assert list(clip["blob"]) == [frame["blob"] for frame in frames]
            assert clip["count"].tolist() == [len(frame["blob"]) for frame in frames]
            whole = np.stack([frame["image"] for frame in frames])
            expected = np.repeat(whole, 2, axis=2)[:, 5:7, 14:18]
            np.testing.assert_array_equal(clip["image"].numpy(), expected)


def test_functions_of_clips_see_texts_and_padding(path: Path) -> None:
    def summed(clip: dict[str, Any], _generator: np.random.Generator) -> dict[str, Any]:
        assert all(type(text) is str for text in clip["note"])
        assert [len(grid.shape) for grid in clip["grid"]] == [3, 3]
        return {
            "id": clip["id"],
            "words": np.array([len(text) for text in clip["note"]]),
            "rows": clip["imu_mask"].sum(1),
            "sum": clip["imu"].sum((1, 2)),
            "note": [text.upper() for text in clip["note"]],
            "blob": tuple(clip["blob"][:1]),
        }

    options = {"clip_transform": summed, "metadata": ["task"], "ragged": {"imu": "pad"}}
    for take in TAKERS:
        clips = every(make(take, path, **options))
        assert len(clips) == CLIPS
        for clip in clips:
            frames = [stored_frame(*number.tolist()) for number in clip["id"]]
            assert clip["words"].tolist() == [len(item["note"]) for item in frames]
            assert clip["rows"].tolist() == [len(item["imu"]) for item in frames]
            sums = [item["imu"].sum() for item in frames]
            assert clip["sum"].tolist() == pytest.approx(sums, abs=1e-4)
            assert clip["note"] == [item["note"].upper() for item in frames]
            assert list(clip["blob"]) == [frames[0]["blob"]]


def grows(one: dict[str, Any]) -> Any:
    """A value that changes within the episode."""
    return one["id"].reshape(-1, 2)[0, 1]


def test_texts_that_a_function_must_not_give(path: Path) -> None:
    cases: list[tuple[str, Callable[[Any], Any], str]] = [
        ("frame", lambda one: {"caption": one["note"]}, "unknown size; .*feature: caption"),
        ("frame", lambda one: {"blob": one["note"]}, "unknown size; .*feature: blob"),
        ("frame", lambda one: {"note": one["note"] * (1 + 3 * (grows(one) == 2))}, "longer text"),
        ("frame", lambda one: {"note": one["note" if grows(one) < 4 else "blob"]}, "another type"),
        ("clip", lambda one: {"caption": one["note"]}, "unknown size; .*feature: caption"),
        ("clip", lambda one: {"note": one["blob"]}, "unknown size; .*feature: note"),
        ("clip", lambda one: {"note": one["note"][grows(one) // 4 :]}, "different number of texts"),
        ("clip", lambda one: {"note": [one["note"][0] * (1 + 5 * grows(one))]}, "a longer text"),
        ("clip", lambda one: {"id": one["id" if grows(one) < 4 else "note"]}, "another dtype"),
    ]
    for (of, change, pattern), take in product(cases, TAKERS):

        def function(one: Any, _generator: Any = None, *, change: Any = change) -> dict[str, Any]:
            return dict(change(one))

        options = {"features": ["note", "blob", "id"], f"{of}_transform": function}
        with pytest.raises(ClipError, match=pattern) as caught:
            every(make(take, path, **options))
        assert caught.value.episode is not None
        assert caught.value.frame is not None


# ---- memory


def test_the_limit_counts_padding_and_texts(tmp_path: Path) -> None:
    """Batches with one frame a clip need the memory of the largest frames and their masks."""
    of_text = FeatureSpec("text", U1, (None,), value="text")
    of_id = FeatureSpec("id", np.dtype("<i8"), ())
    schema = Schema([FeatureSpec("points", F4, (None, 3)), of_text, of_id])
    frames = [
        {"points": np.zeros((1000 if i == 2 else 10, 3), F4), "text": "é" * (5000 if i == 2 else 1)}
        | {"id": np.array(i)}
        for i in range(4)
    ]
    path = tmp_path / "x"
    write_dataset(path, {"a": frames}, schema=schema)

    def least(*features: str, **options: Any) -> int:
        clips: Any = {"clip_len": 1, "batch_size": 10, "features": ["id", *features]}
        return minimum_memory(partial(SeqRecordPipe, path, **clips, **options))

    base = least()
    texts, lists = least("text") - base, least("points") - base
    assert 30 * 4 * 10_000 <= texts <= 60 * 4 * 10_000 + 20_000, "4 bytes a byte of UTF-8 at most"
    padded = least("points", ragged="pad") - base
    more = least("points", ragged={"points": 4000}) - base
    assert 30 * 12_000 <= lists <= 60 * 13_100
    assert 30 * 13_000 <= padded <= 60 * 13_100
    assert 30 * 4 * 13_000 <= more <= 60 * 4 * 13_100


# ---- errors


REFUSED: list[tuple[str, Any, str]] = [
    *(("ragged", form, 'expected: "list", "pad" or "nested"') for form in ("padded", 12, None)),
    ("ragged", {"imu": 0}, "got: {'imu': 0}"),
    *(("ragged", {"imu": size}, "got: {'imu'") for size in ((1.5,), True, None)),
    ("ragged", {3: "pad"}, "got: {3"),
    ("ragged", {"image": "pad"}, r"shape varies; .*expected: imu, grid; got: image: uint8 "),
    ("ragged", {"note": "nested"}, "shape varies; .*got: note: text"),
    ("ragged", {"imu2": "pad"}, "shape varies; .*got: imu2"),
    ("ragged", {"grid": "nested"}, "one varying dimension, the first; .*feature: grid"),
    ("ragged", "nested", "one varying dimension, the first; .*feature: grid"),
    ("ragged", "pad", r"sizes of 2 dimensions.*ragged={'grid': \(480, 640\)}"),
    ("ragged", {"grid": 5}, r"sizes of 2 dimensions.*got: \[5\]"),
    ("ragged", {"imu": (5, 6)}, r"sizes of 1 dim.*got: \[5, 6\]"),
    ("ragged", {"imu": 3}, "larger than its padded size; .*imu; expected: sizes of at least 96"),
    ("metadata", "task", "metadata is a list of names; expected: .*task"),
    ("metadata", 3, "expected: a list of names; got: 3"),
    ("metadata", [3], "expected: a list of names"),
    ("metadata", ["tusk", "task"], "no selected episode has .*arm, rate, task; got: tusk"),
    ("metadata", ["image"], "has the name of this metadata; .*got: image"),
    ("metadata", ["start"], "has the name of this metadata; .*got: start"),
]


def test_invalid_forms_and_metadata(path: Path) -> None:
    for (option, value, pattern), take in product(REFUSED, TAKERS):
        with pytest.raises(ClipError, match=pattern):
            make(take, path, **{option: value})
    options: dict[str, Any] = {"features": ["id"], "metadata": ["rate"]}
    assert make(SeqRecordPipe, path, **options, episodes=["lab/2", "kitchen/3"])
    with pytest.raises(ClipError, match="no selected episode has this metadata"):
        make(SeqRecordPipe, path, **options, episodes="lab/2")


def test_errors_name_the_frame_that_is_too_large(path: Path) -> None:
    """Its size in two dimensions was unknown before."""
    for take in TAKERS:
        with pytest.raises(ClipError, match="exceeds the padded size") as caught:
            every(make(take, path, features=["grid"], ragged={"grid": (2, 20)}))
        error: Any = caught.value
        assert (error.feature, error.expected, error.got[0]) == ("grid", "at most [2, 20]", 3)
        assert len(stored_frame(int(error.episode.split("/")[1][0]), error.frame)["grid"]) == 3


def test_forms_do_not_go_with_a_transform_or_with_a_feature_of_the_mask_s_name(
    path: Path, tmp_path: Path
) -> None:
    with pytest.raises(ClipError, match="ragged does not go with frame_transform"):
        make(SeqRecordPipe, path, frame_transform=lambda item: item, ragged="pad")
    schema = Schema([FeatureSpec("flow", U1, (None,)), FeatureSpec("flow_mask", U1, (3,))])
    frame = {"flow": np.zeros(2, "u1"), "flow_mask": np.zeros(3, "u1")}
    other = tmp_path / "x"
    write_dataset(other, {"a": [frame]}, schema=schema)
    assert len(SeqRecordPipe(other, clip_len=1)) == 1
    with pytest.raises(ClipError, match="the name of the mask"):
        SeqRecordPipe(other, clip_len=1, ragged="pad")


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    """Only without `verify`, or if it was written this way."""
    write_dataset(tmp_path / "x", {"a": columns(text=[f"sentence {i}" for i in range(8)])})
    (file,) = (tmp_path / "x").rglob("*.seqrec")
    data = file.read_bytes()
    assert data.count(b"sentence 5") == 1
    file.write_bytes(data.replace(b"sentence 5", b"sentence\xff5"))
    for take in TAKERS:
        with pytest.raises(CodecError, match="not UTF-8") as caught:
            every(take(seqrecord.open(tmp_path / "x", verify=False), clip_len=8))
        assert (caught.value.feature, caught.value.frame) == ("text", 5)
        assert "a (frames 0 to 7)" in str(caught.value)
