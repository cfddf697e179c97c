"""clip_transform functions: called with cropped clips, seeded by seed, epoch and clip."""

from __future__ import annotations

import itertools
import pickle
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordMapDataset, SeqRecordPipe
from tests.kit.clip_data import names, no_leaks, resumed
from tests.kit.datasets import written_once
from tests.loader.test_crops import frame_of, write

path = written_once(write)


def mean_and_draw(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Returns changed, shorter, random and unchanged features."""
    assert clip["image"].flags.writeable
    return {
        "image": clip["image"][::-1].transpose(0, 3, 1, 2),
        "motion": np.abs(clip["flow"]).sum((1, 2))[:1],
        "notes": np.array([len(note) for note in clip["note"]]),
        "drawn": generator.random(2, np.float32),
        "pose": clip["pose"],
    }


def twice(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Changes a result of `mean_and_draw` and adds a random feature."""
    return {**clip, "motion": torch.from_numpy(clip["motion"] * 2), "more": generator.random(1)}


CHAINS: dict[str, Any] = {
    "function": mean_and_draw,
    "crop, flip, two functions": [
        seqrecord.RandomCrop((4, 6), features=["image", "flow"]),
        seqrecord.HorizontalFlip(0.5, features=["image", "flow"]),
        mean_and_draw,
        twice,
    ],
}


def check_clip(clip: dict[str, Any], length: int, dilation: int) -> None:
    """Compares a clip with its frames, cropped and flipped as recorded; ignores random values."""
    episode = int(clip["episode"][4:])
    frames = [frame_of(episode, int(clip["start"]) + i * dilation) for i in range(length)]
    whole: dict[str, Any] = {name: [frame[name] for frame in frames] for name in frames[0]}
    whole = {name: item if name == "note" else np.stack(item) for name, item in whole.items()}
    assert ("crop" in clip) == ("more" in clip)
    if "crop" in clip:
        top, left, height, width = clip["crop"].tolist()
        for name in ("image", "flow"):
            whole[name] = whole[name][:, top : top + height, left : left + width]
            if clip["flipped"]:
                whole[name] = whole[name][:, :, ::-1]
    expected = mean_and_draw(whole, np.random.default_rng(0))
    if "more" in clip:
        expected["motion"] = expected["motion"] * 2
    for name, array in expected.items():
        assert clip[name].numpy().dtype == array.dtype
        if name == "motion":
            np.testing.assert_allclose(clip[name].numpy(), array, rtol=1e-5)
        elif name != "drawn":
            np.testing.assert_array_equal(clip[name].numpy(), array)
    assert set(clip) - {"crop", "flipped", "more"} == {*expected, "episode", "start"}


def test_functions_receive_copies(path: Path) -> None:
    """Overlapping clips share no memory: functions may write to them."""
    seen = []

    def function(clip: dict[str, Any], _: np.random.Generator) -> dict[str, Any]:
        seen.append(clip["pose"])
        return {"pose": clip["pose"]}

    list(SeqRecordPipe(path, clip_len=3, shuffle=False, clip_transform=function))
    assert len(seen) > 30
    assert not any(np.shares_memory(*pair) for pair in itertools.pairwise(seen))


def random_values(clips: Any) -> dict[tuple[str, int], list[float]]:
    """Random values by clip, from batches or single clips."""
    found: dict[tuple[str, int], list[float]] = {}
    for item in clips:
        for place, clip in zip(names(item), clips_of(item), strict=True):
            found[place] = clip["drawn"].tolist() + clip.get("more", clip["drawn"]).tolist()
    return found


def clips_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(item["episode"], str):
        return [item]
    return [{name: value[i] for name, value in item.items()} for i in range(len(item["start"]))]


@pytest.mark.parametrize("name", CHAINS)
def test_clips_equal_the_results_of_the_functions(path: Path, name: str) -> None:
    for settings in (
        {"batch_size": 3, "dilation": 2},
        {"batch_size": 2, "stride": 3},
        {"batch_size": 4, "shuffle": False, "memory_limit": "1MiB"},
        {},
    ):
        options: dict[str, Any] = {"clip_len": 3, "clip_transform": CHAINS[name], **settings}
        pipe = SeqRecordPipe(path, **options)
        assert "motion: float32 [1, 2]" in repr(pipe)
        clips = [clip for item in pipe for clip in clips_of(item)]
        assert len(clips) == pipe.num_clips
        for clip in clips:
            check_clip(clip, 3, options.get("dilation", 1))


def test_draws_depend_on_seed_epoch_and_clip_alone(path: Path) -> None:
    def make(kind: Any = SeqRecordPipe, **changes: Any) -> Any:
        chain = CHAINS["crop, flip, two functions"]
        settings = {"clip_len": 3, "clip_transform": chain, "batch_size": 3, "seed": 2, **changes}
        return kind(path, **settings)

    pipe = make()
    first = random_values(pipe)
    assert len({str(numbers) for numbers in first.values()}) == len(first)
    assert first == random_values(make(batch_size=None, shuffle=False))
    assert random_values(pipe) != first
    assert random_values(make(seed=3)) != first
    copy = pickle.loads(pickle.dumps(make()))
    iterator = iter(copy)
    given = random_values(next(iterator) for _ in range(4))
    assert {**given, **random_values(resumed(make(), copy.state_dict()))} == first
    stream = make(SeqRecordIterableDataset)
    assert random_values(DataLoader(stream, batch_size=None, num_workers=2)) == first


def test_clips_by_number(path: Path) -> None:
    for chain in CHAINS.values():
        dataset = SeqRecordMapDataset(path, clip_len=3, dilation=2, clip_transform=chain)
        torch.manual_seed(0)
        first = dataset.__getitems__([3, 9, 0, 9])
        for clip in [*first, dataset[5]]:
            check_clip(clip, 3, 2)
        torch.manual_seed(0)
        assert random_values(first) == random_values(dataset.__getitems__([3, 9, 0, 9]))
        batch = seqrecord.collate(first)
        assert batch["motion"].shape == (4, 1, 2)
        assert batch["motion"].data_ptr() == first[0]["motion"].data_ptr()  # contiguous


class Prompt:
    """Values from a clip's columns, an array of varying length and a text among them."""

    example: ClassVar[dict[str, Any]] = {"tokens": np.zeros((4, 2), np.int16), "prompt": "x" * 30}
    made: ClassVar[dict[str, Any]] = {}

    def __call__(self, clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        if self.made:
            return self.made
        drawn = generator.integers(9)
        assert not clip["pose_is_pad"].flags.writeable
        return {
            **clip,
            "real": ~clip["pose_is_pad"],
            "numbers": np.array([clip["start"], clip["weight"], *clip["pair"]]),
            "prompt": f"{clip['label']}, {clip['episode']} {clip['start']}",
            "tokens": np.full((clip["start"] % 5, 2), clip["start"], np.int16),
            "drawn": drawn + clip["pose"],
        }


def check_prompts(batch: dict[str, Any]) -> Iterator[int]:
    """Compares a batch's results of `Prompt` with its columns; yields the rows of the table."""
    assert torch.equal(batch["real"], ~batch["pose_is_pad"])
    for i, (key, start) in enumerate(names(batch)):
        row = batch["weight"][i].item()
        assert batch["numbers"][i].tolist() == [start, row, row, -row]
        assert batch["label"][i] == f"é{row}"
        assert batch["prompt"][i] == f"é{row}, {key} {start}"
        assert torch.equal(batch["tokens"][i], torch.full((start % 5, 2), start, dtype=torch.int16))
        yield row


@pytest.mark.parametrize(
    "chain", [[Prompt()], [seqrecord.RandomCrop((4, 6), features=["image"]), Prompt()]]
)
def test_functions_receive_the_columns_of_their_sample(path: Path, chain: Any) -> None:
    """Masks, place and table; results are texts, and arrays of varying length."""
    count, rows = 9, np.arange(9)
    table = {
        "episode": [f"set/{i % 3}" for i in rows],
        "start": rows // 3,
        "weight": rows,
        "pair": np.stack((rows, -rows), axis=1),
        "label": [f"é{i}" for i in rows],
    }
    options: dict[str, Any] = {
        "clip_len": 3,
        "windows": {"pose": [-2, 0, 9]},
        "pad": "edge",
        "samples": table,
        "clip_transform": chain,
        "features": ["image", "pose"],
    }
    pipe = SeqRecordPipe(path, batch_size=4, **options)
    assert "tokens: int16 [?, 2]" in repr(pipe)
    for _ in range(2):
        assert sorted(row for batch in pipe for row in check_prompts(batch)) == [*rows]
    for clip in SeqRecordPipe(path, **options):
        assert clip["prompt"].endswith(f"{clip['episode']} {clip['start']}")
        assert clip["tokens"].tolist() == [[clip["start"]] * 2] * (clip["start"] % 5)
    mapped = SeqRecordMapDataset(path, **options)
    batch = seqrecord.collate(mapped.__getitems__([*range(count)]))
    assert [*check_prompts(batch)] == [*rows]
    stream = SeqRecordIterableDataset(path, batch_size=2, **options)
    loader: Any = DataLoader(stream, batch_size=None, num_workers=1)
    assert sorted(row for batch in loader for row in check_prompts(batch)) == [*rows]
    mix = seqrecord.SeqRecordMix({"a": SeqRecordIterableDataset(path, **options)}, batch_size=3)
    assert sorted(row for batch in mix for row in check_prompts(batch)) == [*rows]


# ---- errors


def test_an_error_names_the_clip(path: Path) -> None:
    """A function's result for the clip at frame 7 of one episode differs from the others."""
    at = frame_of(2, 7)["pose"]

    def fails(make: Callable[[dict[str, Any]], Any]) -> Any:
        def function(clip: dict[str, Any], _: np.random.Generator) -> Any:
            result = {"x": clip["pose"].sum(1), "y": clip["depth"][:, 0, 0]}
            return make(result) if (clip["pose"][0] == at).all() else result

        return function

    def broken(_: Any) -> Any:
        raise KeyError("nothing")

    other = "other features than for the first clip"
    shorter = r"^clip_transform returns.* first clip;.*float64 \[3\].*float64 \[2\]"
    cases: list[tuple[Any, type[Exception], str]] = [
        (broken, KeyError, "nothing"),
        (lambda made: {**made, "x": made["x"][:2]}, ClipError, shorter),
        (lambda made: {**made, "x": made["x"].astype("f4")}, ClipError, r"float64.*float32 \[3\]"),
        (lambda made: {"x": made["x"]}, ClipError, f"{other}.*x, y"),
        (lambda made: {**made, "z": made["x"]}, ClipError, other),
        (lambda made: made["x"], ClipError, "does not return arrays by name"),
        (lambda _: {}, ClipError, "does not return arrays by name"),
    ]
    for make, kind, message in cases:
        with no_leaks():
            options: dict[str, Any] = {"clip_len": 3, "clip_transform": fails(make)}
            dataset, pipe = SeqRecordMapDataset(path, **options), SeqRecordPipe(path, **options)
            uses: list[Callable[[], Any]] = [partial(list, pipe)]
            uses.append(partial(dataset.__getitem__, len(dataset) - 3))
            for use in uses:
                with pytest.raises(kind, match=message) as caught:
                    use()
                text = str(caught.value) + str(getattr(caught.value, "__notes__", ""))
                assert "set/2" in text
                assert re.search(r"frame:? 7\b", text)
                assert str(path) in text
                del caught, use
            del pipe, dataset, uses


def test_invalid_results_and_writes_of_functions_are_refused(path: Path) -> None:
    results: list[tuple[Any, str]] = [
        *((result, "not return arrays by name") for result in (None, {}, {1: np.zeros(3)})),
        ({"x": 3.0}, "a scalar"),
        *(({"x": np.array([item])}, "torch has no such dtype") for item in ("text", None)),
        ({"x": [np.zeros(2), np.zeros(3)]}, "not an array"),
        *(({name: np.zeros(3)}, "a batch's extra column") for name in ("start", "crop")),
        ({"x": "text"}, "unknown size; .*VaryingClipFunction"),
    ]
    for result, message in results:
        for loader in (SeqRecordPipe, SeqRecordMapDataset):
            with pytest.raises(ClipError, match=message):
                loader(path, clip_len=3, clip_transform=lambda *_, result=result: result)

    long = {"tokens": np.zeros((5, 2), np.int16)}
    for made, message in (
        (long, r"not fit its example; .*int16 \[\?, 2\] of at most 16 bytes.*int16 \[5, 2\]"),
        ({"tokens": np.zeros((1, 2))}, r"not fit its example; .*float64 \[1, 2\]"),
        ({"tokens": 3}, "not fit its example"),
        ({"prompt": "é" * 16}, "or than its example; .*32 bytes"),
        ({"prompt": b""}, "another type"),
        ({"start": 3}, "a batch's extra column"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Prompt, "made", made)
            with pytest.raises(ClipError, match=message):
                SeqRecordPipe(path, clip_len=3, clip_transform=Prompt())

    def writes(clip: dict[str, Any], _: np.random.Generator) -> Any:
        clip["image"] += 1
        return {"image": clip["image"]}

    plain = [clip["image"] for clip in SeqRecordPipe(path, clip_len=3, shuffle=False)]
    pipe = SeqRecordPipe(path, clip_len=3, shuffle=False, clip_transform=writes)
    for _ in range(2):
        assert all(
            torch.equal(clip["image"], image + 1) for clip, image in zip(pipe, plain, strict=True)
        )
    with pytest.raises(ClipError, match=r"called on the host; .*no device"):
        SeqRecordPipe(path, clip_len=3, clip_transform=mean_and_draw, device="cpu")


@pytest.mark.parametrize("loader", [SeqRecordPipe, SeqRecordMapDataset])
def test_functions_with_unseeded_generators_are_refused(path: Path, loader: Any) -> None:
    """As in torchvision transforms: threads would use a global generator in any order."""
    counter, of, differ = itertools.count(), "global generator of", "different results"
    draws: list[tuple[Callable[[], Any], str]] = [
        (lambda: torch.rand(()), f"{of} torch"),
        (random.random, f"{of} random"),
        (np.random.random, f"{of} numpy.random"),
        (lambda: np.random.default_rng().random(), differ),
        (lambda: np.random.RandomState().rand(), differ),
        (lambda: random.Random().random(), differ),
        (lambda: random.SystemRandom().random(), differ),
        (np.random.default_rng(0).random, differ),
        (lambda: next(counter), differ),
    ]
    for draw, message in draws:

        def frames(frame: dict[str, Any], draw: Any = draw) -> dict[str, Any]:
            return {"pose": np.asarray(frame["pose"]) + np.float32(draw())}

        def clips(clip: dict[str, Any], _: Any, frames: Any = frames) -> dict[str, Any]:
            made: dict[str, Any] = frames(clip)
            return made

        for chain in (clips, [lambda clip, _: clip, clips]):
            with pytest.raises(ClipError, match=message) as caught:
                loader(path, clip_len=2, clip_transform=chain)
            assert "torchvision.transforms.v2.functional" in str(caught.value.expected)
            assert caught.value.episode is not None
        with pytest.raises(ClipError, match=f"frame_transform.*{message}"):
            loader(path, clip_len=2, frame_transform=frames)


def test_seeded_generators_of_every_library_are_accepted(path: Path) -> None:
    def own(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        seed = int(generator.integers(1 << 62))
        drawn = torch.rand((), generator=torch.Generator().manual_seed(seed))
        other = random.Random(seed).random() + np.random.default_rng(seed).random()
        return {"pose": torch.tensor(clip["pose"]) + drawn + other}

    torch.manual_seed(3)
    first, again = (SeqRecordPipe(path, clip_len=2, clip_transform=own) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one["pose"], other["pose"])

    def in_place(frame: dict[str, Any]) -> dict[str, Any]:
        frame["pose"] += 1
        return {"pose": frame["pose"]}

    (clip, *_) = SeqRecordPipe(path, clip_len=1, shuffle=False, frame_transform=in_place)
    assert np.array_equal(clip["pose"][0], frame_of(0, 0)["pose"] + 1)


@pytest.mark.parametrize("loader", [SeqRecordPipe, SeqRecordMapDataset])
def test_functions_with_a_wrong_number_of_arguments_are_refused(path: Path, loader: Any) -> None:
    def three(clip: Any, generator: Any, more: Any) -> Any:
        raise AssertionError

    module = torch.nn.Identity()  # as torchvision transforms: `forward` takes one argument
    for function in (lambda clip: clip, three, [pose_of, lambda clip: clip], module):
        with pytest.raises(ClipError, match="cannot be called with 2 arguments") as caught:
            loader(path, clip_len=2, clip_transform=function)
        assert caught.value.expected == "a function of (clip, generator)"
    for other in (lambda frame, generator: frame, three):
        with pytest.raises(ClipError, match="cannot be called with 1 argument") as caught:
            loader(path, clip_len=2, frame_transform=other)
        assert caught.value.expected == "a function of (frame)"
    with pytest.raises(ClipError, match="cannot be called with 1 argument"):
        seqrecord.open(path).compute_statistics(frame_transform=cast("Any", three))
    # Any callable with two positional arguments is accepted.
    for good in (lambda *both: pose_of(*both), partial(three_of, 1), pose_of):
        next(iter(loader(path, clip_len=2, clip_transform=good)))


def pose_of(clip: dict[str, Any], generator: Any, scale: int = 1) -> dict[str, Any]:
    return {"pose": clip["pose"] * scale}


def three_of(number: int, clip: dict[str, Any], generator: Any) -> dict[str, Any]:
    return {"pose": clip["pose"] * number}


@pytest.mark.parametrize("transform", ["frame_transform", "clip_transform"])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_stop_iteration_in_a_function_is_a_clip_error(
    path: Path, transform: str, workers: int
) -> None:
    """It used to end the loop without an error, after 13 of 28 clips."""
    at = frame_of(1, 4)["pose"]

    def stops(arrays: dict[str, Any], _: Any = None) -> dict[str, Any]:
        if (arrays["pose"] == at).all(-1).any():
            next(iter(()))
        return {"pose": arrays["pose"]}

    function: Any = (lambda frame: stops(frame)) if transform == "frame_transform" else stops
    options: dict[str, Any] = {"clip_len": 4, "features": ["pose"], transform: function}
    dataset = SeqRecordMapDataset(path, **options)
    loader = DataLoader(dataset, batch_size=1, num_workers=workers, collate_fn=len)
    for clips in (loader, SeqRecordPipe(path, **options)):
        with pytest.raises(ClipError, match=f"{transform} raised StopIteration.*set/1"):
            list(clips)
