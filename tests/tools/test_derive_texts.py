"""`seqrecord.derive` with `per_text`: values of distinct texts, and their place in batches."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import edit, export
from seqrecord.errors import ClipError, DestinationError, FormatError, JoinError, SchemaError
from seqrecord.sources import undistorted
from tests.kit.command_line import fail, run
from tests.kit.datasets import write_dataset
from tests.kit.processes import killed_at

TASKS = "open the door", "close it", "öffne"
NUM_EPISODES = 7


def task_of(episode: int) -> str:
    return TASKS[episode % 3]


def write_records(path: Path, episodes: range = range(NUM_EPISODES), **options: Any) -> Path:
    frames: dict[str, list[dict[str, Any]]] = {
        f"e{episode}": [
            {"image": np.full((4, 6, 3), episode + i, np.uint8), "task": task_of(episode)}
            for i in range(5)
        ]
        for episode in episodes
    }
    write_dataset(path, frames, fps=10.0, **options)
    return path


def embedding(text: str) -> torch.Tensor:
    """A value whose length depends on the text, [L, 3] bfloat16."""
    return torch.arange(3 * len(text)).reshape(-1, 3).bfloat16() + len(text)


class TextEncoder:
    """Counts its calls."""

    def __init__(self) -> None:
        self.texts = list[str]()

    def __call__(self, text: str) -> torch.Tensor:
        self.texts.append(text)
        return embedding(text)


def mean(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"mean": batch["image"].float().mean(dim=(-1, -2, -3))}


def derive(records: Path, encode: Any, *, into: str = "derived", **arguments: Any) -> Path:
    folder = records.parent / into
    arguments = {"features": ["image"], "batch_size": 4, "per_text": {"task": encode}, **arguments}
    seqrecord.derive(records, mean, folder, **arguments)
    return folder


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write_records(tmp_path / "records")


@pytest.fixture
def derived(records: Path) -> Path:
    return derive(records, embedding, keep=["task"])


def append_episode(records: Path, key: str, task: str) -> None:
    with (
        seqrecord.SeqRecordWriter(records, mode="append") as writer,
        writer.episode(key) as episode,
    ):
        for _ in range(4):
            episode.append({"image": np.zeros((4, 6, 3), np.uint8), "task": task})


def read_all(*arguments: Any, **options: Any) -> None:
    for _ in seqrecord.SeqRecordPipe(*arguments, clip_len=2, batch_size=3, **options):
        pass


def assert_equal(value: Any, text: str) -> None:
    assert torch.equal(torch.as_tensor(value).bfloat16(), embedding(text))


def test_each_distinct_text_is_encoded_and_stored_once(records: Path) -> None:
    encoder = TextEncoder()
    folder = derive(records, encoder, keep=["task"])
    assert encoder.texts == [*TASKS]
    with seqrecord.open(folder) as dataset:
        assert [*dataset.features] == ["task", "mean"]
        dictionary = dataset.dictionaries["task_embedding"]
        assert len(dictionary) == 3
        assert {*dictionary} == {*TASKS}
        default = np.zeros(1)
        keys: list[Any] = ["an unknown text", 3, None]
        for key in keys:
            assert key not in dictionary
            assert dictionary.get(key, default) is default
            with pytest.raises(KeyError):
                dictionary[key]
        for text, value in dictionary.items():
            assert value.dtype == np.float32
            assert_equal(value, text)


def test_again_computes_only_new_texts(records: Path) -> None:
    derive(records, TextEncoder())
    encoder = TextEncoder()
    derive(records, encoder)
    assert encoder.texts == []
    append_episode(records, "more/0", TASKS[0])
    append_episode(records, "more/1", "new")
    arguments: dict[str, Any] = {"features": ["image"], "per_text": {"task": encoder}}
    state = seqrecord.check_derived(records, mean, records.parent / "derived", **arguments)
    assert state.new_texts == {"task_embedding": ["new"]}
    assert not state.is_current
    folder = derive(records, encoder)
    assert encoder.texts == ["new"]
    with seqrecord.open(records, join=[folder]) as dataset:
        assert len(dataset.dictionaries["task_embedding"]) == 4
        assert_equal(dataset.dictionaries["task_embedding"]["new"], "new")


FORMS: dict[str, dict[str, Any]] = {
    "list": {},
    "pad": {"ragged": "pad"},
    "sizes": {"ragged": {"task_embedding": 20}},
    "nested": {"ragged": "nested"},
}


def assert_batch(batch: Mapping[str, Any], form: str, *, as_numpy: bool = False) -> None:
    """Check the values of texts [clips][frames] in a batch."""
    values, size = batch["task_embedding"], {"pad": 13, "sizes": 20}.get(form)
    if form == "nested":
        values = [*values.unbind()]
        values = [values[i * 2 : i * 2 + 2] for i in range(len(values) // 2)]
    kind = np.ndarray if as_numpy else torch.Tensor
    assert len(values) == len(batch["task"])
    for clip, (texts, clip_values) in enumerate(zip(batch["task"], values, strict=True)):
        assert len(texts) == len(clip_values) == 2
        for frame, (text, value) in enumerate(zip(texts, clip_values, strict=True)):
            assert isinstance(value, kind)
            if size is not None:
                mask = batch["task_embedding_mask"][clip][frame]
                assert value.shape == (size, 3)
                assert mask.tolist() == [i < len(text) for i in range(size)]
                assert not value[len(text) :].any()
                value = value[: len(text)]
            assert_equal(value, text)


@pytest.mark.parametrize("form", FORMS)
def test_batches_have_the_values_of_their_texts(derived: Path, form: str) -> None:
    pipe = seqrecord.SeqRecordPipe(derived, clip_len=2, batch_size=3, **FORMS[form])
    assert f"task_embedding: bfloat16 [2, {({'pad': 13, 'sizes': 20}).get(form, '?')}, 3]" in repr(
        pipe
    )
    batches = [*pipe]
    assert sum(len(batch["task"]) for batch in batches) >= NUM_EPISODES * 4
    for batch in batches:
        assert_batch(batch, form)


@pytest.mark.parametrize(
    "options",
    [
        {"ragged": "pad", "clip_len": 2},
        {"ragged": {"task_embedding": "pad"}, "clip_len": 2},
        {"ragged": "pad", "clip_len": 2, "output": "numpy"},
        {"ragged": "pad", "clip_len": 2, "device": "cpu"},
        {"ragged": "pad", "clip_len": 1, "squeeze_time": True},
        {"ragged": "pad", "samples": "lists"},
        {"ragged": {"task_embedding": "pad"}, "samples": "lists"},
    ],
)
def test_batches_of_a_budget_are_padded_to_their_longest_value(
    derived: Path, options: dict[str, Any]
) -> None:
    if "samples" in options:
        with seqrecord.open(derived) as dataset:
            keys = [key for key in dataset.episodes for _ in range(2)]
        frames = [[0, 1, 2] if number % 2 else [number % 3] for number in range(len(keys))]
        options = {**options, "samples": {"episode": keys, "frames": frames}}
    longest = set[int]()
    for batch in seqrecord.SeqRecordPipe(
        derived, batch_size=seqrecord.Budget(4), seed=1, **options
    ):
        clips = [[t] if isinstance(t, str) else t for t in batch["task"]]
        size = max(len(text) for texts in clips for text in texts)
        longest.add(size)
        values, masks = batch["task_embedding"], batch["task_embedding_mask"]
        for texts, value, mask in zip(clips, values, masks, strict=True):
            rows = torch.as_tensor(value).reshape(-1, size, 3)
            row_masks = torch.as_tensor(mask).reshape(-1, size)
            for text, row, row_mask in zip(texts, rows, row_masks, strict=True):
                assert row_mask.tolist() == [place < len(text) for place in range(size)]
                assert not row[len(text) :].any()
                assert_equal(row[: len(text)], text)
    assert len(longest) > 1


def collated(batch: list[Any]) -> dict[str, Any]:
    return seqrecord.collate(batch)


@pytest.mark.parametrize("form", FORMS)
def test_single_clips_and_clips_by_number(derived: Path, form: str) -> None:
    options: dict[str, Any] = {"clip_len": 2, **FORMS[form]}
    clips = [*seqrecord.SeqRecordPipe(derived, shuffle=False, **options)]
    by_number = seqrecord.SeqRecordMapDataset(derived, **options)
    for clip in (*clips[:3], by_number[1], by_number[5]):
        if form != "nested":
            assert_batch({n: [value] for n, value in clip.items()}, form)
        else:
            assert_batch({**clip, "task": [clip["task"]]}, form)
    for batch in DataLoader(by_number, batch_size=4, collate_fn=collated):
        assert_batch(batch, form)
    assert_batch(seqrecord.collate(clips[:5]), form)


@pytest.mark.parametrize("form", ["list", "pad"])
def test_numpy_output(derived: Path, form: str) -> None:
    options: dict[str, Any] = {"clip_len": 2, "output": "numpy", **FORMS[form]}
    for batch in seqrecord.SeqRecordPipe(derived, batch_size=3, **options):
        assert_batch(batch, form, as_numpy=True)
    clip = seqrecord.SeqRecordMapDataset(derived, **options)[3]
    assert_batch({n: [value] for n, value in clip.items()}, form, as_numpy=True)


@pytest.mark.parametrize("form", ["list", "pad"])
def test_single_frames_have_no_axis_of_frames(derived: Path, form: str) -> None:
    options: dict[str, Any] = {"clip_len": 1, "squeeze_time": True, **FORMS[form]}
    for batch in seqrecord.SeqRecordPipe(derived, batch_size=3, **options):
        for text, value in zip(batch["task"], batch["task_embedding"], strict=True):
            assert_equal(value[: len(text)], text)


def test_values_of_one_shape_are_stacked(records: Path) -> None:
    def pooled(text: str) -> torch.Tensor:
        return embedding(text).float().mean(dim=0)

    folder = derive(records, pooled, keep=["task"])
    for batch in seqrecord.SeqRecordPipe(folder, clip_len=2, batch_size=3):
        expected = torch.stack([torch.stack([*map(pooled, clip)]) for clip in batch["task"]])
        assert torch.equal(batch["task_embedding"], expected)


def test_joined_with_the_source(records: Path) -> None:
    folder = derive(records, embedding)
    with seqrecord.open(folder) as dataset:  # which has no texts
        assert dataset.dictionaries == {}
        [batch, *_] = seqrecord.SeqRecordPipe(dataset, clip_len=2, batch_size=3)
        assert "task_embedding" not in batch
    joined = seqrecord.open(records, join=[folder])
    for batch in seqrecord.SeqRecordPipe(joined, clip_len=2, batch_size=3):
        assert "image" in batch
        assert_batch(batch, "list")
    renamed = joined.renamed({"task": "instruction", "task_embedding": "t5"})
    for batch in seqrecord.SeqRecordPipe(renamed, clip_len=2, batch_size=3):
        texts = {"task": batch["instruction"], "task_embedding": batch["t5"]}
        assert_batch(texts, "list")


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (None, {"image", "task", "mean", "task_embedding"}),
        (["image", "task"], {"image", "task"}),
        (["image", "task_embedding"], {"image", "task", "task_embedding"}),
        (["task_embedding"], {"task", "task_embedding"}),
    ],
)
def test_features_choose_values(records: Path, features: Any, expected: set[str]) -> None:
    folder = derive(records, embedding)
    for joined, chosen in (
        (seqrecord.open(records, join=[folder], features=features), None),
        (seqrecord.open(records, join=[folder]), features),
        (seqrecord.open(records, join=[seqrecord.open(folder)]), features),
    ):
        batch = next(
            iter(seqrecord.SeqRecordPipe(joined, clip_len=2, batch_size=3, features=chosen))
        )
        assert batch.keys() - {"episode", "start"} == expected
    with_texts = derive(records, embedding, keep=["task"], version="with texts", into="kept")
    companion = seqrecord.open(with_texts, features=["mean", "task_embedding"])
    assert [*companion.features] == ["mean", "task"]
    read_all(seqrecord.open(records, join=[companion]), features=["image", "task_embedding"])
    without = seqrecord.open(folder, features=["mean"])
    assert seqrecord.open(records, join=[without]).dictionaries == {}


def test_a_join_without_the_texts_is_refused(records: Path) -> None:
    folder = derive(records, embedding)
    edit.rename_features(records, {"task": "goal"})
    for features in (None, ["image", "task_embedding"]):
        with pytest.raises(JoinError, match=r"values of texts task, which no .*'task': NAME"):
            seqrecord.open(records, join=[folder], features=features)
    read_all(seqrecord.open(records, join=[folder], features=["goal", "mean"]))
    without = seqrecord.open(folder, features=["mean"])
    read_all(seqrecord.open(records, join=[without]))
    renamed = seqrecord.open(folder).renamed({"task": "goal"})
    for batch in seqrecord.SeqRecordPipe(
        seqrecord.open(records, join=[renamed]), clip_len=2, batch_size=3
    ):
        assert_batch({**batch, "task": batch["goal"]}, "list")
    edit.rename_features(records, {"goal": "text", "image": "task"})
    with pytest.raises(JoinError, match="expected: the feature task, a text; got: task: uint8"):
        seqrecord.open(records, join=[folder])


def test_workers_and_resume(derived: Path) -> None:
    def stream() -> Any:
        return seqrecord.SeqRecordIterableDataset(derived, clip_len=2, batch_size=3, ragged="pad")

    batches = [*DataLoader(stream(), batch_size=None, num_workers=2)]
    for batch in batches:
        assert_batch(batch, "pad")
    loader = stream()
    iterator = iter(loader)
    next(iterator)
    resumed = stream()
    resumed.load_state_dict(loader.state_dict())
    batch, expected = next(iter(resumed)), next(iterator)
    assert_batch(batch, "pad")
    assert torch.equal(batch["task_embedding"], expected["task_embedding"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alternate", [True, False])
def test_mixes(tmp_path: Path, form: str, alternate: bool) -> None:
    folders = []
    for number, episodes in enumerate((range(1), range(1, 7))):
        records = write_records(tmp_path / str(number) / "records", episodes)
        folders.append(derive(records, embedding, keep=["task"]))
    options: dict[str, Any] = {"clip_len": 2, **FORMS[form]}
    sources = {path.parent.name: seqrecord.SeqRecordPipe(path, **options) for path in folders}
    mix = seqrecord.SeqRecordMix(sources, batch_size=4, single_source_batches=alternate)
    seen = set[str]()
    for batch in mix:
        if alternate and form == "pad":  # to the largest value of the batch's source
            continue
        assert_batch(batch, form)
        seen |= {text for texts in batch["task"] for text in texts}
    assert seen == {*TASKS} or (alternate and form == "pad")


def test_mixes_of_a_budget(tmp_path: Path) -> None:
    folders = []
    for number, episodes in enumerate((range(1), range(1, 7))):
        records = write_records(tmp_path / str(number) / "records", episodes)
        folders.append(derive(records, embedding, keep=["task"]))
    sources = {
        path.parent.name: seqrecord.SeqRecordPipe(path, clip_len=2, ragged="pad")
        for path in folders
    }
    longest = set[int]()
    for batch in seqrecord.SeqRecordMix(sources, batch_size=seqrecord.Budget(4)):
        size = max(len(text) for texts in batch["task"] for text in texts)
        assert batch["task_embedding"].shape == (2, 2, size, 3)
        assert batch["task_embedding_mask"].shape == (2, 2, size)
        longest.add(size)
    assert len(longest) > 1


def mix_of(plain: Any, joined: Any, ragged: Any, **options: Any) -> Any:
    sources = {
        name: seqrecord.SeqRecordPipe(dataset, clip_len=2, ragged=ragged)
        for name, dataset in (("plain", plain), ("joined", joined))
    }
    return seqrecord.SeqRecordMix(sources, batch_size=4, **options)


def test_a_mix_with_a_source_without_values(tmp_path: Path) -> None:
    plain = write_records(tmp_path / "plain")
    records = write_records(tmp_path / "a" / "records")
    joined = seqrecord.open(records, join=[derive(records, embedding)], features=None)
    for ragged in ("list", "pad"):
        mix = mix_of(plain, joined, ragged, features="union")
        for batch, _ in zip(mix, range(5), strict=False):
            missing = [name == "plain" for name in batch["dataset"]]
            assert batch["task_embedding_is_missing"].tolist() == missing
            for clip, is_missing in enumerate(missing):
                value = batch["task_embedding"][clip]
                if ragged == "pad":
                    assert is_missing == (not batch["task_embedding_mask"][clip].any())
                    assert not (is_missing and value.any())
                else:
                    assert is_missing == (value is None)
                if not is_missing:
                    assert_equal(value[0][: len(batch["task"][clip][0])], batch["task"][clip][0])
    shared = mix_of(plain, joined, "list", features="intersection")
    assert "task_embedding" not in next(iter(shared))


def test_a_text_without_a_value_is_an_error(records: Path) -> None:
    folder = derive(records, embedding)
    append_episode(records, "new", "an unknown one")
    joined = seqrecord.open(records, join=[folder], missing="pad")
    features = ["image", "task_embedding"]
    with pytest.raises(ClipError, match=r"derive again.*an unknown one"):
        read_all(joined, features=features)


def test_damage_names_the_file(derived: Path) -> None:
    [file] = (derived / "dictionaries" / "task_embedding" / "records").glob("*.seqrec")
    data = bytearray(file.read_bytes())
    data[64 : len(data) // 2] = bytes(len(data) // 2 - 64)
    file.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_all(derived)
    assert caught.value.file is not None
    assert "task_embedding" in caught.value.file
    shutil.rmtree(derived / "dictionaries")
    with pytest.raises(seqrecord.NotFoundError, match="derive them again"):
        read_all(derived)
    read_all(derived, features=["task", "mean"])


def broken(text: str) -> torch.Tensor:
    if text == TASKS[1]:
        raise ValueError("out of memory")
    return embedding(text)


@pytest.mark.parametrize(
    ("encode", "match"),
    [
        (lambda text: [[1.0], [2.0, 3.0]], r"no array.*got: \[\[1.0\], \[2.0, 3.0\]\]"),
        (lambda text: text.upper(), "no array"),
        (3, "per_text is not valid"),
    ],
)
def test_mistakes(records: Path, encode: Any, match: str) -> None:
    with pytest.raises(ClipError, match=match):
        derive(records, encode)


@pytest.mark.usefixtures("users_boundary")
def test_an_error_loses_no_value(records: Path) -> None:
    with pytest.raises(ValueError, match="out of memory") as caught:
        derive(records, broken)
    assert caught.type is ValueError
    text = "".join(traceback.format_exception_only(caught.value))
    assert f"in the function of per_text, for the text {TASKS[1]!r}" in text
    encoder = TextEncoder()
    derive(records, encoder, version="")
    assert TASKS[1] in encoder.texts


def test_another_function_or_version_is_refused(records: Path) -> None:
    derive(records, embedding)
    with pytest.raises(ClipError, match="another function or version"):
        derive(records, TextEncoder())
    with pytest.raises(ClipError, match="which new texts would lack"):
        derive(records, None, per_text=None)


def other_embedding(text: str) -> torch.Tensor:
    return embedding(text) + 1


def interrupted(text: str) -> torch.Tensor:
    if text == TASKS[2]:
        raise ValueError("interrupted")
    return other_embedding(text)


@pytest.mark.parametrize("version", ["", "2"])
@pytest.mark.parametrize("is_local", [True, False])
def test_values_of_an_interrupted_function_are_not_used(
    records: Path, version: str, is_local: bool
) -> None:
    place: Any = records.parent / "out" if is_local else f"memory://interrupted/texts{version}"

    def call(encode: Any, version: str) -> None:
        per_text = {"task": encode}
        seqrecord.derive(
            *(records, mean, place), features=["image"], per_text=per_text, version=version
        )

    with pytest.raises(ValueError, match="interrupted"):
        call(interrupted, "")
    encoder = TextEncoder()
    arguments: dict[str, Any] = {"features": ["image"], "per_text": {"task": encoder}}
    call(encoder, version)
    state = seqrecord.check_derived(records, mean, place, version=version, **arguments)
    assert state.is_current
    assert encoder.texts == [*TASKS]
    for batch in seqrecord.SeqRecordPipe(
        seqrecord.open(records, join=[place]), clip_len=2, batch_size=3
    ):
        assert_batch(batch, "list")


def test_a_function_of_another_version_continues_from_nothing(records: Path) -> None:
    calls = list[str]()

    def encode(text: str) -> torch.Tensor:
        calls.append(text)
        return interrupted(text) if len(calls) <= 3 else embedding(text)

    with pytest.raises(ValueError, match="interrupted"):
        derive(records, encode, keep=["task"], version="1")
    folder = derive(records, encode, keep=["task"], version="2")
    assert values_of(folder) == EXPECTED


@pytest.mark.parametrize(
    ("wrong", "expected", "got"),
    [
        (lambda text: np.zeros(len(text), np.float32), r"float32 \[13\]", r"float32 \[8\]"),
        (lambda text: np.zeros((2, len(text))), r"float64 \[\?, 13\]", r"float64 \[2, 8\]"),
        (lambda text: np.zeros((2,) * (1 + len(text) % 2)), r"\[\?, 2\]", r"float64 \[2\]"),
        (lambda text: np.zeros(3, f"f{4 + len(text) % 2 * 4}"), "float64", "float32"),
    ],
)
def test_values_that_differ_can_be_corrected(
    records: Path, wrong: Any, expected: str, got: str
) -> None:
    functions = [wrong, embedding]

    def encode(text: str) -> Any:
        return functions[0](text)

    match = rf"per_text.*task_embedding; expected: .*{expected}.*; got: .*{got}.* text 'close it'"
    with pytest.raises(ClipError, match=match):
        derive(records, encode, keep=["task"])
    del functions[0]
    folder = derive(records, encode, keep=["task"])
    assert values_of(folder) == EXPECTED
    append_episode(records, "new", "one more")
    functions[0] = wrong
    with pytest.raises(ClipError, match=r"got: .* for the text 'one more'"):
        derive(records, encode, keep=["task"])
    functions[0] = embedding
    derive(records, encode, keep=["task"])
    assert [*values_of(folder)] == [*TASKS, "one more"]


def test_episodes_without_texts_have_no_dictionary(tmp_path: Path) -> None:
    image = np.zeros((2, 2, 3), np.uint8)
    frames: dict[str, list[dict[str, Any]]] = {
        "b": [{"image": image, "task": "open it"}] * 3,
        "a": [{"image": image}] * 3,
    }
    write_dataset(tmp_path / "records", frames)
    encoder, codecs = TextEncoder(), {"task_embedding": "raw"}
    folder = derive(tmp_path / "records", encoder, episodes=["a"], codecs=codecs)
    with seqrecord.open(folder) as dataset:
        assert not dataset.dictionaries
    assert seqrecord.verify(folder).ok
    read_all(folder)
    assert encoder.texts == []
    derive(tmp_path / "records", encoder)
    assert encoder.texts == ["open it"]
    with seqrecord.open(tmp_path / "records", join=[folder]) as dataset:
        assert [*dataset.dictionaries["task_embedding"]] == ["open it"]


def test_a_feature_that_is_no_text(records: Path) -> None:
    with pytest.raises(ClipError, match="per_text is for texts"):
        derive(records, None, per_text={"image": embedding})


# Everything that handles datasets takes dictionaries along


def values_of(folder: Path) -> dict[str, Any]:
    with seqrecord.open(folder) as dataset:
        dictionary = dataset.dictionaries["task_embedding"]
        return {text: value.tolist() for text, value in dictionary.items()}


EXPECTED = {text: embedding(text).float().tolist() for text in TASKS}


def test_merge_and_copies(tmp_path: Path) -> None:
    folders = []
    for number, episodes in enumerate((range(1), range(1, 3))):
        records = write_records(tmp_path / str(number) / "records", episodes)
        folders.append(derive(records, embedding, keep=["task"]))
    merged = tmp_path / "merged"
    edit.merge_datasets(folders, merged)
    assert values_of(merged) == EXPECTED
    read_all(merged)
    edit.merge_datasets([folders[0]], merged, mode="append", prefixes=["again/"])
    assert values_of(merged) == EXPECTED
    with seqrecord.open(folders[1]) as dataset:
        assert len(dataset.dictionaries["task_embedding"]) == 2
    without = tmp_path / "without"
    edit.merge_datasets(folders, without, features=["task", "mean"])
    assert not (without / "dictionaries").exists()
    copy = tmp_path / "copy"
    source = seqrecord.open_source(merged)
    seqrecord.convert(source, copy, codecs="small", workers=1)
    assert values_of(copy) == EXPECTED


def test_an_undistorted_copy(records: Path) -> None:
    camera = {"fx": 5.0, "fy": 5.0, "cx": 2.5, "cy": 1.5, "width": 6, "height": 4}
    lens = {"distortion_model": "opencv", "distortion_coefficients": [-0.1, 0.0, 0.0, 0.0]}
    edit.set_metadata(records, None, {"camera": {**camera, **lens}})
    folder, copy = derive(records, embedding), records.parent / "copy"
    source = undistorted(seqrecord.open_source(records, join=[folder]))
    seqrecord.convert(source, copy, workers=1)
    assert values_of(copy) == EXPECTED


@pytest.mark.parametrize(
    ("encode", "match"),
    [
        (other_embedding, "different values of a text"),
        (lambda text: np.zeros((2, 4), np.float32), "different dtype or shape"),
    ],
)
def test_a_refused_merge_leaves_nothing_behind(tmp_path: Path, encode: Any, match: str) -> None:
    folders = []
    for number, function in enumerate((embedding, encode)):
        records = write_records(tmp_path / str(number) / "records", range(number * 3, 6))
        folders.append(derive(records, function, keep=["task"]))
    merged = tmp_path / "merged"
    with pytest.raises((DestinationError, SchemaError), match=match):
        edit.merge_datasets(folders, merged, prefixes=["a/", "b/"])
    assert not [*merged.rglob("*.*")]
    edit.merge_datasets(folders[1:], merged)
    assert values_of(merged) == values_of(folders[1])
    with pytest.raises((DestinationError, SchemaError), match=match):
        seqrecord.convert(seqrecord.open_source(folders[0]), merged, mode="append")
    assert values_of(merged) == values_of(folders[1])


@pytest.mark.parametrize("num_texts", [2, 3])
def test_values_left_by_an_interrupted_merge_are_not_mixed_in(
    records: Path, num_texts: int
) -> None:
    folder, merged = derive(records, embedding, keep=["task"]), records.parent / "merged"
    left = derive(
        write_records(records.parent / "left" / "records", range(num_texts)), other_embedding
    )
    shutil.copytree(left / "dictionaries", merged / "dictionaries")
    (merged / "dictionaries" / "task_embedding" / "manifest.json").unlink()
    edit.merge_datasets([folder], merged)
    assert values_of(merged) == EXPECTED
    assert seqrecord.verify(merged).ok


def test_verify_reindex_and_clean(derived: Path) -> None:
    edit.delete_episodes(derived, ["e0"])
    edit.rewrite_files(derived, min_unused=0.01)
    edit.clean(derived, older_than=0)
    assert values_of(derived) == EXPECTED
    report = seqrecord.verify(derived, deep=True)
    assert report.ok
    assert report.num_record_files >= 2
    for name in ("manifest.json", "dictionaries/task_embedding/manifest.json"):
        (derived / name).unlink()
        seqrecord.reindex((derived / name).parent)
        assert values_of(derived) == EXPECTED
        read_all(derived)
    [file, *_] = (derived / "dictionaries" / "task_embedding" / "records").glob("*.seqrec")
    data = bytearray(file.read_bytes())
    data[128] ^= 1
    file.write_bytes(data)
    report = seqrecord.verify(derived)
    assert [problem.file for problem in report.problems] == [str(file)]
    shutil.rmtree(derived / "dictionaries" / "task_embedding")
    assert not seqrecord.verify(derived).ok


def test_edits_of_features(derived: Path) -> None:
    with pytest.raises(SchemaError, match="values of texts with this name"):
        edit.add_feature(derived, "task_embedding", lambda episode: np.zeros(len(episode)))
    with pytest.raises(SchemaError, match="the same name"):
        edit.rename_features(derived, {"mean": "task_embedding"})
    version = edit.list_versions(derived)[0].id
    edit.rename_features(derived, {"task": "instruction"})
    for batch in seqrecord.SeqRecordPipe(derived, clip_len=2, batch_size=3):
        assert_batch({**batch, "task": batch["instruction"]}, "list")
    edit.restore_version(derived, version)
    read_all(derived, features=["task_embedding"])
    edit.drop_features(derived, ["task"])
    with seqrecord.open(derived) as dataset:
        assert dataset.dictionaries == {}


def test_a_lost_manifest_after_renames_of_the_texts(derived: Path) -> None:
    """Copies have the name that their original had."""
    for name, names in (
        ("goal", {"task": "goal"}),
        ("mean", {"goal": "mean", "mean": "goal"}),
        ("task", {"mean": "task"}),
    ):
        edit.rename_features(derived, names)
        copied = derived.with_name(f"copy-{name}")
        seqrecord.convert(seqrecord.open_source(derived), copied, workers=1)
        for folder in (copied, derived):
            (folder / "manifest.json").unlink()
            seqrecord.reindex(folder)
            assert values_of(folder) == EXPECTED
            with seqrecord.open(folder) as dataset:
                assert dataset.dictionaries["task_embedding"].text == name
            read_all(folder)


def test_trimmed_and_renamed_episodes_join(records: Path) -> None:
    folder = derive(records, embedding)
    edit.trim_episodes(records, ["e1"], slice(1, None))
    edit.rename_episodes(records, {"e2": "x"})
    for batch in seqrecord.SeqRecordPipe(
        seqrecord.open(records, join=[folder]), clip_len=2, batch_size=3
    ):
        assert_batch(batch, "list")


@pytest.mark.parametrize("export_to", [export.to_files, export.to_lerobot])
def test_exports_leave_values_out(
    derived: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, export_to: Any
) -> None:
    arguments = (None,) if export_to is export.to_files else ()
    export_to(derived, *arguments, tmp_path / "all")
    assert "without values of texts: task_embedding" in caplog.text
    with pytest.raises(SchemaError, match="once per text"):
        export_to(derived, *arguments, tmp_path / "some", features=["task_embedding"])
    assert not (tmp_path / "some").exists()


def test_summary(records: Path) -> None:
    folder, line = derive(records, embedding), "task_embedding: 3 texts of task, bfloat16 [?, 3]"
    assert line in str(seqrecord.summarize(folder))
    assert line in run("info", records, "--join", folder).output


def test_command(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "encoders_of_texts.py").write_text(
        "import numpy as np\n"
        "def mean(batch):\n    return {'mean': batch['image'].float().mean(dim=(1, 2, 3))}\n"
        "def embed(text):\n    return np.full((len(text), 2), len(text), np.float32)\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["derive", records, "encoders_of_texts:mean", "-o", tmp_path / "out"]
    arguments += ["--features", "image", "--keep", "task"]
    assert "FEATURE=MODULE:FUNCTION" in fail(*arguments, "--per-text", "task", code=2)
    run(*arguments, "--per-text", "task=encoders_of_texts:embed", "--quiet")
    with seqrecord.open(tmp_path / "out") as dataset:
        assert dataset.dictionaries["task_embedding"]["öffne"].tolist() == [[5.0, 5.0]] * 5
    append_episode(records, "new", "one more")
    check = run(*arguments, "--per-text", "task=encoders_of_texts:embed", "--check", code=1)
    assert "new text: task_embedding: one more" in check.output


@pytest.mark.slow
def test_a_kill_at_any_change_loses_nothing(tmp_path: Path) -> None:
    for at in range(1, 1000):
        records = write_records(tmp_path / str(at) / "records", range(2))

        def work(records: Path = records) -> None:
            derive(records, embedding, keep=["task"])

        is_killed = killed_at(at, work)
        folder = derive(records, embedding, keep=["task"])
        assert values_of(folder) == {text: EXPECTED[text] for text in TASKS[:2]}
        read_all(folder)
        assert seqrecord.verify(folder).ok
        if not is_killed:
            break
    assert at > 10


@pytest.mark.slow
def test_a_kill_while_values_are_replaced_mixes_none(tmp_path: Path) -> None:
    other_values = {text: other_embedding(text).float().tolist() for text in TASKS}
    for at in range(1, 1000):
        records = write_records(tmp_path / str(at) / "records", range(3))
        with pytest.raises(ValueError, match="interrupted"):
            derive(records, interrupted)

        def work(records: Path = records) -> None:
            derive(records, embedding, keep=["task"])

        is_killed = killed_at(at, work)
        with suppress(ClipError):  # refused if the kill came after the commit of the dataset
            derive(records, other_embedding, keep=["task"])
        values = values_of(records.parent / "derived")
        assert values == (other_values if is_killed and values != EXPECTED else EXPECTED)
        assert seqrecord.verify(records.parent / "derived").ok
        if not is_killed:
            break
    assert at > 10


def test_texts_can_be_added_later_and_of_several_features(tmp_path: Path) -> None:
    frames = [
        {"image": np.full((2, 2, 3), i, np.uint8), "task": "open it", "hint": f"step {i % 2}"}
        for i in range(6)
    ]
    write_dataset(tmp_path / "records", {"e": frames}, fps=5.0)
    folder = derive(tmp_path / "records", None, per_text=None, keep=["task", "hint"])
    encoder = TextEncoder()
    per_text = {"task": embedding, "hint": encoder}
    derive(tmp_path / "records", None, per_text=per_text, keep=["task", "hint"])
    assert encoder.texts == ["step 0", "step 1"]
    with seqrecord.open(folder) as dataset:
        assert [*dataset.dictionaries] == ["task_embedding", "hint_embedding"]
        assert dataset.num_frames == 6
        assert dataset.statistics["mean"].mean == pytest.approx([2.5])
    for batch in seqrecord.SeqRecordPipe(folder, clip_len=2, batch_size=5):
        for clip, texts in enumerate(batch["hint"]):
            for frame, text in enumerate(texts):
                assert_equal(batch["hint_embedding"][clip][frame], text)
                assert_equal(batch["task_embedding"][clip][frame], "open it")


def test_a_destination_that_is_no_local_folder(records: Path) -> None:
    encoder, place = TextEncoder(), "memory://derived/texts"
    for _ in range(2):
        seqrecord.derive(
            *(records, mean, place), features=["image"], keep=["task"], per_text={"task": encoder}
        )
    assert encoder.texts == [*TASKS]
    for batch in seqrecord.SeqRecordPipe(place, clip_len=2, batch_size=3):
        assert_batch(batch, "list")
    assert seqrecord.verify(place).ok
    for batch in DataLoader(
        seqrecord.SeqRecordMapDataset(place, clip_len=2), batch_size=4, collate_fn=collated
    ):
        assert_batch(batch, "list")
