"""Texts, bytes, arrays of varying shapes and metadata in clips and batches of all loaders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    SeqRecordDataset,
    SeqRecordNode,
    SeqRecordPipe,
    SeqRecordStream,
)
from seqrecord.errors import CodecError, MemoryLimitError
from tests.value_data import LENGTHS, METADATA, check_clip, clips_in, frame, write_values

PADDED: dict[str, Any] = {
    "imu": "pad",
    "grid": (3, 4),
}  # the largest frames: 4 rows; 3 and 3, so one is to spare
FORMS: dict[str, dict[str, Any]] = {
    "list": {},
    "pad": PADDED,
    "nested": {"imu": "nested"},
    "both": {"imu": "nested", "grid": (3, 3)},
}


def shown(forms: dict[str, Any]) -> dict[str, Any]:
    """The forms with the sizes that "pad" chooses: 4 rows are the most of `imu`."""
    return {**forms, **({"imu": (4,)} if forms.get("imu") == "pad" else {})}


def all_clips(length: int) -> list[tuple[str, int]]:
    return [(f"e/{e}", s) for e, n in enumerate(LENGTHS) for s in range(n - length + 1)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_values(tmp_path_factory.mktemp("values") / "records")


def from_pipe(path: Path, **options: Any) -> Iterator[Any]:
    yield from SeqRecordPipe(path, batch_size=4, **options)


def from_device(path: Path, **options: Any) -> Iterator[Any]:
    yield from SeqRecordPipe(path, batch_size=4, device="cpu", **options)


def from_node(path: Path, **options: Any) -> Iterator[Any]:
    yield from SeqRecordNode(path, batch_size=4, **options)


def from_single_clips(path: Path, **options: Any) -> Iterator[Any]:
    yield from SeqRecordPipe(path, **options).batch(4).collate(seqrecord.collate)


def from_dataset(path: Path, **options: Any) -> Iterator[Any]:
    dataset = SeqRecordDataset(path, **options)
    yield from DataLoader(dataset, batch_size=4, shuffle=True, collate_fn=seqrecord.collate)


def from_workers(path: Path, **options: Any) -> Iterator[Any]:
    stream = SeqRecordStream(path, batch_size=4, equal=False, **options)
    yield from DataLoader(stream, batch_size=None, num_workers=2)


def from_dataset_workers(path: Path, **options: Any) -> Iterator[Any]:
    dataset = SeqRecordDataset(path, **options)
    yield from DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=seqrecord.collate)


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize(
    "loader", [from_pipe, from_device, from_node, from_single_clips, from_dataset]
)
def test_batches_hold_what_their_frames_do(
    path: Path, loader: Callable[..., Iterator[Any]], forms: str
) -> None:
    check_batches(path, loader, forms)


@pytest.mark.parametrize("forms", ["both", "pad"])
@pytest.mark.parametrize("loader", [from_workers, from_dataset_workers])
def test_workers_send_the_same(
    path: Path, loader: Callable[..., Iterator[Any]], forms: str
) -> None:
    check_batches(path, loader, forms)


def check_batches(path: Path, loader: Callable[..., Iterator[Any]], forms: str) -> None:
    ragged, length, found = FORMS[forms], 3, []
    nested = [name for name, form in ragged.items() if form == "nested"]
    options: dict[str, Any] = {"ragged": ragged, "metadata": ["task", "rate", "tags"]}
    for batch in list(loader(path, clip_len=length, **options)):  # kept, for memory is used again
        assert isinstance(batch["rate"], list)
        for clip in clips_in(batch, length, nested):
            found.append(check_clip(clip, length, shown(ragged)))
            expected = METADATA[int(clip["episode"][2:])]
            for name in ("task", "rate", "tags"):
                assert clip[name] == expected.get(name)
                assert type(clip[name]) is type(expected.get(name))
    assert sorted(found) == all_clips(length)


@pytest.mark.parametrize("forms", FORMS)
def test_single_clips(path: Path, forms: str) -> None:
    options: dict[str, Any] = {"clip_len": 3, "dilation": 2, "ragged": FORMS[forms]}
    dataset = SeqRecordDataset(path, **options)
    for clips in (list(SeqRecordPipe(path, **options)), [dataset[i] for i in range(len(dataset))]):
        found = [check_clip(clip, 3, shown(FORMS[forms]), dilation=2) for clip in clips]
        assert sorted(found) == all_clips(5)


def test_clips_that_do_not_overlap_are_padded_where_they_are_loaded(path: Path) -> None:
    pipe = SeqRecordPipe(
        path, clip_len=3, stride=3, batch_size=2, features=["imu", "grid", "image"], ragged=PADDED
    )
    for _ in range(2):  # the second epoch fills the memory of the first anew
        found = [check_clip(c, 3, shown(PADDED)) for batch in pipe for c in clips_in(batch, 3)]
        assert sorted(found) == [clip for clip in all_clips(3) if clip[1] % 3 == 0]


def test_names_come_in_order_with_masks_behind_their_features(path: Path) -> None:
    batch = next(
        iter(SeqRecordPipe(path, clip_len=2, batch_size=2, ragged=PADDED, metadata=["rate"]))
    )
    features = ["image", "text", "imu", "imu_mask", "blob", "grid", "grid_mask", "id"]
    assert list(batch) == [*features, "episode", "start", "rate"]


def test_a_clip_is_not_changed_by_another_of_the_same_call(path: Path) -> None:
    clips = SeqRecordDataset(path, clip_len=3, metadata=["tags"]).__getitems__([0, 1, 0])
    for clip in clips:
        check_clip(clip, 3, {})
        assert clip["tags"] == METADATA[0]["tags"]
        for tensor in clip["imu"]:
            tensor.fill_(-1)
        clip["tags"][1]["b"] = "changed"
        clip["tags"].append("more")


def test_one_word_is_for_all_features_of_variable_shapes(path: Path) -> None:
    forms: Any = {"pad": (4,), "nested": "nested", "list": "list"}
    for form, sizes in forms.items():
        pipe = SeqRecordPipe(path, clip_len=2, features=["imu", "text", "id"], ragged=form)
        assert "imu: float32 [2, 4, 6]" in repr(pipe) or form != "pad"
        for clip in pipe:
            check_clip(clip, 2, {"imu": sizes})
    shown = repr(SeqRecordPipe(path, clip_len=2))
    assert "imu: float32 [2, ?, 6]" in shown
    assert "text: text" in shown


def test_padding_is_as_long_as_the_selected_episodes_need(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=2, features=["imu"], episodes="e/2", ragged="pad")
    (clip,) = pipe
    assert clip["imu"].shape == (2, 3, 6)  # of 2 and 3 rows
    assert clip["imu_mask"].tolist() == [[True, True, False], [True, True, True]]


def test_a_state_is_resumed_in_another_form(path: Path) -> None:
    options: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "seed": 5}
    pipe = SeqRecordPipe(path, **options)
    whole = [batch["start"].tolist() for batch in pipe]
    first = SeqRecordPipe(path, **options)
    iterator = iter(first)
    next(iterator), next(iterator)
    again = SeqRecordPipe(path, **options, ragged=PADDED, metadata=["task"])
    again.load_state_dict(first.state_dict())
    rest = list(again)
    assert [batch["start"].tolist() for batch in rest] == whole[2:]
    for batch in rest:
        for clip in clips_in(batch, 3):
            check_clip(clip, 3, shown(PADDED))


# ---- frame_transform


def test_a_transform_sees_texts_and_may_give_them(path: Path) -> None:
    def change(item: dict[str, Any]) -> dict[str, Any]:
        assert type(item["text"]) is str
        assert type(item["blob"]) is bytes
        return {
            "id": item["id"],
            "text": item["text"][::-1],
            "count": np.array(len(item["blob"])),
            "blob": item["blob"],
        }

    options: dict[str, Any] = {"clip_len": 2, "frame_transform": change}
    dataset = SeqRecordDataset(path, **options)
    clips = [*SeqRecordPipe(path, **options), *dataset.__getitems__(range(len(dataset)))]
    assert len(clips) == 2 * len(all_clips(2))
    for clip in clips:
        for i in range(2):
            expected = frame(*clip["id"][i].tolist())
            assert clip["text"][i] == expected["text"][::-1]
            assert clip["blob"][i] == expected["blob"]
            assert clip["count"][i] == len(expected["blob"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda item: {"caption": item["text"]}, "memory is not known; .*feature: caption"),
        (lambda item: {"blob": item["text"]}, "memory is not known; .*feature: blob"),
        (lambda item: {"text": item["text"] * (4 if item["id"][1] == 2 else 1)}, "longer text"),
        (
            lambda item: {"text": item["text"] if item["id"][1] < 4 else item["blob"]},
            "another type",
        ),
    ],
    ids=["name", "kind", "length", "type"],
)
def test_texts_that_a_transform_must_not_give(
    path: Path, change: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(ClipError, match=says) as caught:
        list(SeqRecordPipe(path, clip_len=2, frame_transform=change))
    assert caught.value.episode is not None
    assert caught.value.frame is not None


def test_what_a_frame_transform_gives_can_be_cropped(path: Path) -> None:
    def wider(item: dict[str, Any]) -> dict[str, Any]:
        return {"image": np.repeat(item["image"], 2, axis=1), "id": item["id"]}

    options: dict[str, Any] = {"clip_len": 2, "frame_transform": wider}
    crop = seqrecord.CenterCrop((2, 4))
    dataset = SeqRecordDataset(path, **options, clip_transform=crop)
    clips = list(SeqRecordPipe(path, **options, clip_transform=crop))
    assert len(clips) == len(dataset) > 10
    for clip in (*clips, dataset[3]):
        expected = [frame(*number.tolist())["image"] for number in clip["id"]]
        whole = np.repeat(np.stack(expected), 2, axis=2)
        np.testing.assert_array_equal(clip["image"].numpy(), whole[:, 1:3, 3:7])


def test_functions_of_clips_see_texts_and_padding(path: Path) -> None:
    def summed(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        del generator
        assert all(type(text) is str for text in clip["text"])
        assert [len(grid.shape) for grid in clip["grid"]] == [3, 3]
        return {
            "id": clip["id"],
            "words": np.array([len(text) for text in clip["text"]]),
            "rows": clip["imu_mask"].sum(1),
            "sum": clip["imu"].sum((1, 2)),
            "text": [text.upper() for text in clip["text"]],
            "blob": tuple(clip["blob"][:1]),
        }

    options: dict[str, Any] = {"clip_len": 2, "clip_transform": summed, "metadata": ["task"]}
    dataset = SeqRecordDataset(path, **options, ragged={"imu": "pad"})
    pipe = SeqRecordPipe(path, **options, ragged={"imu": "pad"})
    clips = [*pipe, *dataset.__getitems__(range(len(dataset)))]
    assert len(clips) == 2 * len(all_clips(2))
    for clip in clips:
        frames = [frame(*number.tolist()) for number in clip["id"]]
        assert clip["words"].tolist() == [len(item["text"]) for item in frames]
        assert clip["rows"].tolist() == [len(item["imu"]) for item in frames]
        assert clip["sum"].tolist() == pytest.approx(
            [item["imu"].sum() for item in frames], abs=1e-4
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda clip: {"caption": clip["text"]}, "memory is not known; .*feature: caption"),
        (lambda clip: {"text": clip["blob"]}, "memory is not known; .*feature: text"),
        (lambda clip: {"text": clip["text"][clip["id"][0, 1] // 4 :]}, "another number of texts"),
        (lambda clip: {"text": [clip["text"][0] * (1 + 5 * clip["id"][0, 1])]}, "a longer text"),
        (lambda clip: {"id": clip["id" if clip["id"][0, 1] < 4 else "text"]}, "another dtype"),
    ],
    ids=["name", "kind", "number", "length", "texts for an array"],
)
def test_texts_that_a_function_must_not_give(
    path: Path, change: Callable[[Any], Any], says: str
) -> None:
    def function(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        del generator
        return dict(change(clip))

    for loader in (SeqRecordPipe, SeqRecordDataset):
        with pytest.raises(ClipError, match=says) as caught:
            read_all(loader(path, clip_len=2, clip_transform=function))
        assert caught.value.episode is not None
        assert caught.value.frame is not None


def read_all(loader: Any) -> list[Any]:
    if isinstance(loader, SeqRecordDataset):
        return list(loader.__getitems__(range(len(loader))))
    return list(loader)


# ---- memory


def test_the_limit_counts_padding_and_texts(tmp_path: Path) -> None:
    """Batches of one frame a clip take what the largest frames do, with masks."""

    def least(**options: Any) -> int:
        with pytest.raises(MemoryLimitError) as caught:
            SeqRecordPipe(tmp_path / "x", clip_len=1, memory_limit=1, **options)
        return int(re.findall(r"at least (\d+) bytes", str(caught.value))[0])

    with (
        seqrecord.SeqRecordWriter(
            tmp_path / "x",
            schema=seqrecord.Schema(
                [
                    seqrecord.FeatureSpec("points", np.dtype("<f4"), (None, 3)),
                    seqrecord.FeatureSpec("text", np.dtype("u1"), (None,), value="text"),
                    seqrecord.FeatureSpec("id", np.dtype("<i8"), ()),
                ]
            ),
        ) as writer,
        writer.episode("a") as episode,
    ):
        for i in range(4):
            points = np.zeros((1000 if i == 2 else 10, 3), "<f4")
            text = "é" * (5000 if i == 2 else 1)
            episode.append({"points": points, "text": text, "id": np.array(i)})
    base = least(features=["id"], batch_size=10)
    texts = least(features=["id", "text"], batch_size=10) - base
    assert 30 * 4 * 10_000 <= texts <= 60 * 4 * 10_000 + 20_000, "4 bytes a byte of UTF-8 at most"
    lists = least(features=["id", "points"], batch_size=10) - base
    padded = least(features=["id", "points"], batch_size=10, ragged="pad") - base
    more = least(features=["id", "points"], batch_size=10, ragged={"points": 4000}) - base
    assert 30 * 12_000 <= lists <= 60 * 13_100
    assert 30 * 13_000 <= padded <= 60 * 13_100
    assert 30 * 4 * 13_000 <= more <= 60 * 4 * 13_100


def test_batches_of_nested_tensors_use_memory_again(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=4, features=["imu"], ragged="nested")
    seen = [batch["imu"].values().untyped_storage().data_ptr() for _ in range(3) for batch in pipe]
    assert len(set(seen)) <= 6 < len(seen)


# ---- what is refused


@pytest.mark.parametrize(
    ("ragged", "says"),
    [
        ("padded", 'expected: "list", "pad" or "nested"'),
        (12, 'expected: "list", "pad" or "nested"'),
        (None, 'expected: "list", "pad" or "nested"'),
        ({"imu": 0}, "got: {'imu': 0}"),
        ({"imu": (1.5,)}, "got: {'imu'"),
        ({"imu": True}, "got: {'imu'"),
        ({"imu": None}, "got: {'imu'"),
        ({3: "pad"}, "got: {3"),
        ({"image": "pad"}, r"shape varies; .*expected: imu, grid; got: image: uint8 \[4, 5, 3\]"),
        ({"text": "nested"}, "shape varies; .*got: text: text"),
        ({"imu2": "pad"}, "shape varies; .*got: 'imu2'"),
        ({"grid": "nested"}, "first dimension only; .*feature: grid"),
        ("nested", "first dimension only; .*feature: grid"),
        ("pad", r"several dimensions vary.*ragged={'grid': \(480, 640\)}"),
        ({"grid": 5}, r"number of sizes.*expected: 2; got: \[5\]"),
        ({"imu": (5, 6)}, r"number of sizes.*expected: 1; got: \[5, 6\]"),
        (
            {"imu": 3},
            "larger than what it is padded to; .*feature: imu; expected: sizes of at least 96",
        ),
    ],
)
def test_forms_that_are_refused(path: Path, ragged: Any, says: str) -> None:
    for loader in (SeqRecordPipe, SeqRecordDataset):
        with pytest.raises(ClipError, match=says):
            loader(path, clip_len=2, ragged=ragged)


def test_a_frame_that_is_too_large_is_named(path: Path) -> None:
    """Its size was not known before, of two dimensions."""
    for read in (list, lambda pipe: pipe[0]):
        loader: Any = SeqRecordPipe if read is list else SeqRecordDataset
        with pytest.raises(ClipError, match="larger than what it is padded to") as caught:
            read(loader(path, clip_len=8, features=["grid"], ragged={"grid": (2, 20)}))
        assert caught.value.feature == "grid"
        error: Any = caught.value
        assert frame(int(error.episode[2]), error.frame)["grid"].shape[0] == 3
        assert (error.expected, error.got[0]) == ("at most [2, 20]", 3)


def test_forms_do_not_go_with_a_transform_or_with_a_feature_of_the_mask_s_name(
    path: Path, tmp_path: Path
) -> None:
    with pytest.raises(ClipError, match="ragged does not go with frame_transform"):
        SeqRecordPipe(path, clip_len=2, frame_transform=lambda item: item, ragged="pad")
    schema = seqrecord.Schema(
        [
            seqrecord.FeatureSpec("flow", np.dtype("u1"), (None,)),
            seqrecord.FeatureSpec("flow_mask", np.dtype("u1"), (3,)),
        ]
    )
    with (
        seqrecord.SeqRecordWriter(tmp_path / "x", schema=schema) as writer,
        writer.episode("a") as episode,
    ):
        episode.append({"flow": np.zeros(2, "u1"), "flow_mask": np.zeros(3, "u1")})
    assert len(SeqRecordPipe(tmp_path / "x", clip_len=1)) == 1
    with pytest.raises(ClipError, match="the name of the mask"):
        SeqRecordPipe(tmp_path / "x", clip_len=1, ragged="pad")


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ("task", "metadata is a list of names; expected: .*task"),
        (3, "expected: a list of names; got: 3"),
        ([3], "expected: a list of names"),
        (["tusk", "task"], "no selected episode has this metadata; .*rate, tags, task; got: tusk"),
        (["image"], "has the name of this metadata; .*got: image"),
        (["start"], "has the name of this metadata; .*got: start"),
    ],
)
def test_metadata_that_is_refused(path: Path, metadata: Any, says: str) -> None:
    for loader in (SeqRecordPipe, SeqRecordDataset):
        with pytest.raises(ClipError, match=says):
            loader(path, clip_len=2, metadata=metadata)


def test_metadata_that_only_other_episodes_have_is_an_error(path: Path) -> None:
    assert SeqRecordPipe(path, clip_len=2, metadata=["rate"], episodes=["e/2", "e/3"])
    with pytest.raises(ClipError, match="no selected episode has this metadata"):
        SeqRecordPipe(path, clip_len=2, metadata=["rate"], episodes="e/2")


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    """Only without `verify`, or where it was written so."""
    with seqrecord.SeqRecordWriter(tmp_path / "x") as writer, writer.episode("a") as episode:
        for i in range(8):
            episode.append({"text": f"sentence {i}"})
    (file,) = (tmp_path / "x").rglob("*.seqrec")
    data = file.read_bytes()
    assert data.count(b"sentence 5") == 1
    file.write_bytes(data.replace(b"sentence 5", b"sentence\xff5"))
    for loader in (SeqRecordPipe, SeqRecordDataset):
        clips: Any = loader(seqrecord.open(tmp_path / "x", verify=False), clip_len=8)
        read = (
            partial(next, iter(clips)) if loader is SeqRecordPipe else partial(clips.__getitem__, 0)
        )
        with pytest.raises(CodecError, match="not UTF-8") as caught:
            read()
        assert (caught.value.feature, caught.value.frame) == ("text", 5)
        assert "a (frames 0 to 7)" in str(caught.value)
