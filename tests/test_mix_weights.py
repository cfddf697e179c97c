"""Weights of a mix by size, and clips per epoch, against counting by hand."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordMix, StateError
from tests.clip_data import begun, digests, resumed
from tests.mix_data import write_source

LENGTHS = {"a": (23, 9, 40), "b": (12, 15), "c": (7,)}
CLIPS = {"a": 66, "b": 23, "c": 5}  # of 3 frames


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        write_source(folder / name, number, lengths)
    return folder


def mixed(root: Path, **options: Any) -> SeqRecordMix:
    sources = {name: SeqRecordIterableDataset(root / name, clip_len=3) for name in "abc"}
    return SeqRecordMix(sources, **{"batch_size": 2, "seed": 5, **options})


def run(mix: SeqRecordMix, num_epochs: int = 1) -> Counter[tuple[str, str, int]]:
    """How often each clip comes."""
    found = Counter[tuple[str, str, int]]()
    for _ in range(num_epochs):
        for batch in mix:
            found.update(
                zip(batch["dataset"], batch["episode"], batch["start"].tolist(), strict=True)
            )
    return found


def by_source(clips: Counter[tuple[str, str, int]]) -> Counter[str]:
    total = Counter[str]()
    for (name, _, _), count in clips.items():
        total[name] += count
    return total


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, CLIPS),
        ({"weights": "clips"}, CLIPS),
        ({"weights": "clips", "alpha": 1.0}, CLIPS),
        ({"weights": "frames"}, {name: sum(lengths) for name, lengths in LENGTHS.items()}),
        ({"weights": "equal"}, {"a": 1, "b": 1, "c": 1}),
        ({"alpha": 0}, {"a": 1, "b": 1, "c": 1}),
        ({"alpha": 0.5}, {name: clips**0.5 for name, clips in CLIPS.items()}),
        (
            {"weights": "frames", "alpha": 0.3},
            {name: sum(lengths) ** 0.3 for name, lengths in LENGTHS.items()},
        ),
        ({"repeat": {"a": 2, "b": 0.5}}, {"a": 132, "b": 11, "c": 5}),
        ({"choose": {"a": 10, "b": 0}}, {"a": 10, "b": 0, "c": 5}),
        ({"choose": {"a": 10}, "repeat": {"c": Fraction(7, 5)}}, {"a": 10, "b": 23, "c": 7}),
    ],
)
def test_shares(root: Path, options: dict[str, Any], sizes: dict[str, float]) -> None:
    shares = mixed(root, **options).shares
    assert shares.keys() == {name for name, size in sizes.items() if size}
    for name, share in shares.items():
        assert abs(float(share) - sizes[name] / sum(sizes.values())) < 2 / 65_536


def test_frames_and_clips_are_those_of_the_selected_episodes(root: Path) -> None:
    sources = {name: SeqRecordIterableDataset(root / name, clip_len=3) for name in "bc"}
    sources["a"] = SeqRecordIterableDataset(root / "a", clip_len=3, episodes=[0, 1], stride=4)
    shares = SeqRecordMix(sources, batch_size=2, weights="frames").shares
    assert shares == {"b": Fraction(27, 66), "c": Fraction(7, 66), "a": Fraction(32, 66)}
    assert SeqRecordMix(sources, batch_size=2).shares["a"] == Fraction(8, 36)


@pytest.mark.parametrize("ranks", [1, 3])
def test_clips_of_an_epoch_and_their_repeats(root: Path, ranks: int) -> None:
    """Over 7 epochs, each source gives its clips, and each clip comes equally often, to one."""
    total, size = Counter[tuple[str, str, int]](), 4
    wanted = {"a": 66, "b": 46, "c": 7}
    options: dict[str, Any] = {"repeat": {"b": 2}, "choose": {"c": 7}, "batch_size": size}
    for rank in range(ranks):
        mix = mixed(root, **options, rank=rank, world_size=ranks)
        assert len(mix) == sum(wanted.values()) // (size * ranks)
        total += run(mix, 7)
    each = by_source(total)
    num_clips = 7 * ranks * size * (sum(wanted.values()) // (size * ranks))
    assert sum(each.values()) == num_clips
    for name, count in each.items():
        assert abs(count - num_clips * wanted[name] / sum(wanted.values())) < ranks
        times = [n for (source, _, _), n in total.items() if source == name]
        assert len(times) == CLIPS[name]
        assert ranks > 1 or max(times) - min(times) <= 1  # ranks share evenly, by duplicates


def test_resume_and_other_numbers_of_ranks(root: Path) -> None:
    """A state continues on more ranks: together they give the rest of the epoch."""
    options: dict[str, Any] = {"repeat": {"b": 2}, "batch_size": 3}
    mix = mixed(root, **options)
    iterator = begun(mix, 5)
    state = mix.state_dict()
    assert digests(resumed(mixed(root, **options), state)) == digests(iterator)
    ranks = [resumed(mixed(root, **options, rank=r, world_size=2), state) for r in range(2)]
    left = -(-(len(mix) - 5) // 2)
    assert [len(list(rank)) for rank in ranks] == [left] * 2
    assert [len(list(rank)) for rank in ranks] == [117 // 6] * 2
    with pytest.raises(StateError, match="117 clips"):
        mixed(root, batch_size=3, choose={"c": 6}).load_state_dict(state)


def test_workers_share_the_epoch(root: Path) -> None:
    mix = mixed(root, choose={"a": 40}, batch_size=4)
    batches = DataLoader(mix, batch_size=None, num_workers=2)
    assert len(list(batches)) == len(mix) == 68 // 4


def test_a_nested_mix_counts_with_its_clips_of_an_epoch(root: Path) -> None:
    a, b, c = (SeqRecordIterableDataset(root / name, clip_len=3) for name in "abc")
    chosen = SeqRecordMix({"a": a, "b": b}, choose={"a": 9, "b": 3}, batch_size=1)
    plain = SeqRecordMix({"a": a, "b": b}, weights={"a": 3, "b": 1}, batch_size=1)
    for inner, size, options in (
        (chosen, 12, {}),
        (plain, 89, {}),
        (chosen, 24, {"repeat": {"ab": 2}}),
        (chosen, 99, {"weights": "frames"}),
    ):
        mix = SeqRecordMix({"ab": inner, "c": c}, batch_size=2, **options)
        of_c = 7 if options == {"weights": "frames"} else 5
        assert mix.shares["ab/a"] == Fraction(3, 4) * Fraction(size, size + of_c)
    assert repr(chosen).startswith("SeqRecordMix(epoch of 12 clips")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "size"}, 'weights is not valid.*"frames".*alpha=0.5'),
        ({"weights": ["a"]}, "weights is not valid"),
        ({"weights": "equal", "alpha": 0.5}, "alpha is the power of a size"),
        ({"weights": {"a": 1, "b": 1, "c": 1}, "alpha": 0.5}, "alpha is the power of a size"),
        ({"alpha": 1.5}, "alpha is not valid"),
        ({"alpha": "1"}, "alpha is not valid"),
        ({"repeat": {"x": 1}}, "repeat is not valid.*of a, b, c"),
        ({"choose": 3}, "choose is not valid"),
        ({"choose": {"a": 0.5}}, "choose of source 'a' is not an integer"),
        ({"choose": {"a": -1}}, "choose of source 'a' is too small"),
        ({"repeat": {"a": -1}}, "repeat of source 'a' is not valid"),
        ({"repeat": {"c": 0.1}}, "repeat of source 'c' is too small.*1/5"),
        ({"repeat": {"a": 1}, "choose": {"a": 1}}, "source 'a' .* has repeat and choose"),
        ({"repeat": {"a": 1}, "weights": "equal"}, "exclude weights"),
        ({"repeat": {"a": 1}, "stopping_strategy": 3}, "determine the length of an epoch"),
        ({"choose": {"a": 0, "b": 0, "c": 0}}, "draws from no source"),
    ],
)
def test_arguments_that_make_no_sense(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ClipError, match=message):
        mixed(root, **options)
