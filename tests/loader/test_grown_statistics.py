"""States keep the normalization of vectors, which an append changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import ClipError, SeqRecordMix, SeqRecordPipe, StateError, Vector
from tests.kit.clip_data import digests, resumed
from tests.kit.datasets import columns, write_dataset
from tests.loader.test_grown import saved

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

MODES = ["mean_std", "quantiles"]


def append(path: Path, first: int, stop: int) -> Path:
    """Episodes of a `state` around 10 times the episode's number."""
    numbers = np.arange(12, dtype=np.float32)
    episodes = {
        f"e{n}": columns(state=np.stack([10 * n + numbers / 7, numbers], axis=1))
        for n in range(first, stop)
    }
    write_dataset(path, episodes, mode="append" if first else "create")
    seqrecord.add_statistics(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return append(tmp_path / "records", 0, 2)


def make(path: Path, mode: Any = "mean_std", kind: Any = SeqRecordPipe, **options: Any) -> Any:
    vectors = {"state": Vector(normalize=mode)}
    return kind(path, clip_len=3, batch_size=4, vectors=vectors, **options)


def make_mix(path: Path, mode: Any = "mean_std", scope: Any = "mix", **options: Any) -> Any:
    """Mixes weigh statistics by sizes, which change."""
    other = path.parent / "other"
    if not other.exists():
        append(other, 0, 3)
    sources = {n: SeqRecordPipe(p, clip_len=3) for n, p in {"a": path, "b": other}.items()}
    vectors = {"state": Vector(normalize=mode, statistics=scope)}
    return SeqRecordMix(sources, batch_size=4, vectors=vectors, **options)


def values(batches: list[Any]) -> dict[tuple[str, str, int], Any]:
    """The normalized state of each clip, by source, episode and start."""
    found: dict[tuple[str, str, int], Any] = {}
    for batch in batches:
        sources = batch.get("dataset", [""] * len(batch["episode"]))
        places = zip(sources, batch["episode"], batch["start"].tolist(), strict=True)
        found.update(zip(places, batch["state"].tolist(), strict=True))
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("maker", [make, make_mix], ids=["pipe", "mix"])
def test_another_normalization_is_refused(path: Path, maker: Any, mode: str) -> None:
    loader = maker(path, mode)
    state = saved(loader)
    append(path, 2, 4)
    changed = maker(path, mode)
    before = changed.state_dict()
    match = (
        r"the saved state has another normalization of state, .*expected: normalization=\"state\" "
        r"of the loader.*; or normalization=\"stored\".*got: state: .* in the state, .* here"
    )
    with pytest.raises(StateError, match=match):
        changed.load_state_dict(state)
    assert changed.state_dict() == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("maker", [make, make_mix], ids=["pipe", "mix"])
def test_the_numbers_of_the_state(path: Path, maker: Any, mode: str) -> None:
    """In the rest of the epoch, in later ones, and in the states of these."""
    state = saved(maker(path, mode))
    old = values([*resumed(maker(path, mode), state)])
    append(path, 2, 4)
    loader = resumed(maker(path, mode, normalization="state"), state)
    assert values([*loader]) == old
    following = values([*loader])
    assert {"e2", "e3"} & {key[1] for key in following}
    common = old.keys() & following.keys()
    assert common
    assert all(following[key] == old[key] for key in common)
    later = saved(loader)
    assert later["sources"][0]["normalization"] == state["sources"][0]["normalization"]
    again = resumed(maker(path, mode, normalization="state"), later)
    assert digests(again) == digests(resumed(maker(path, mode, normalization="state"), later))
    with pytest.raises(StateError, match="another normalization"):
        maker(path, mode).load_state_dict(later)


@pytest.mark.parametrize("choice", ["state", "stored"])
def test_the_numbers_after_other_samples(path: Path, choice: str) -> None:
    """`set_samples` keeps the normalization in use, in its epochs and in their states."""
    state = saved(make(path))
    append(path, 2, 4)
    loader = resumed(make(path, normalization=choice), state)
    rest = values([*loader])
    for samples in (None, seqrecord.samples.every(2)):
        loader.set_samples(samples)
        following = values([*loader])
        assert {"e2", "e3"} & {key[1] for key in following}
        common = rest.keys() & following.keys()
        assert common
        assert all(following[key] == rest[key] for key in common)
    later = saved(loader)
    is_same = later["sources"][0]["normalization"] == state["sources"][0]["normalization"]
    assert is_same == (choice == "state")


@pytest.mark.parametrize("maker", [make, make_mix], ids=["pipe", "mix"])
def test_the_stored_numbers(path: Path, maker: Any) -> None:
    state = saved(maker(path))
    append(path, 2, 4)
    loader = resumed(maker(path, normalization="stored"), state)
    rest, following = values([*loader]), values([*loader])
    common = rest.keys() & following.keys()
    assert common
    assert all(following[key] == rest[key] for key in common)
    later = saved(loader)
    maker(path).load_state_dict(later)


def test_other_arguments_are_another_normalization(path: Path) -> None:
    state = saved(make(path))
    with pytest.raises(StateError, match=r"mean_std, offset .* in the state, quantiles, offset"):
        make(path, "quantiles").load_state_dict(state)
    plain = SeqRecordPipe(path, clip_len=3, batch_size=4)
    with pytest.raises(StateError, match="in the state, none here"):
        plain.load_state_dict(state)
    with pytest.raises(StateError, match=r"no usable normalization; .*feature: state"):
        SeqRecordPipe(path, clip_len=3, batch_size=4, normalization="state").load_state_dict(state)
    wrong: list[Any] = [{"mode": "mean_std"}, {"mode": 1, "offset": [0], "scale": [1]}, 5, []]
    for numbers in wrong:
        state["sources"][0]["normalization"] = {"state": numbers}
        with pytest.raises(StateError, match="no usable normalization"):
            make(path, normalization="state").load_state_dict(state)
        with pytest.raises(StateError, match="another normalization"):
            make(path).load_state_dict(state)


def test_a_normalization_of_the_user_stays(path: Path) -> None:
    """The dataset's statistics change, and not the argument."""
    normal = seqrecord.Normalization("mean_std", np.zeros(2), np.ones(2))
    state = saved(make(path, normal))
    append(path, 2, 4)
    rest = values([*resumed(make(path, normal), state)])
    of_first = {start: one for (_, episode, start), one in rest.items() if episode == "e1"}
    assert of_first
    assert all(one[0][1] == start for start, one in of_first.items())
    other = seqrecord.Normalization("mean_std", np.zeros(2), np.full(2, 2.0))
    with pytest.raises(StateError, match="another normalization"):
        make(path, other).load_state_dict(state)


def test_the_argument(path: Path) -> None:
    with pytest.raises(
        ClipError, match="normalization is not valid; expected: 'stored' or 'state'"
    ):
        make(path, normalization="mine")
    with pytest.raises(ClipError, match=r"options of the mix.*without normalization"):
        SeqRecordMix({"a": SeqRecordPipe(path, clip_len=3, normalization="state")}, batch_size=2)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_stateful_dataloader_passes_the_state_only(
    path: Path, num_workers: int, persistent: bool
) -> None:
    options: dict[str, Any] = {"batch_size": None, "num_workers": num_workers}
    if num_workers:
        options["persistent_workers"] = persistent

    def loader(**more: Any) -> Any:
        return StatefulDataLoader(
            make(path, kind=seqrecord.SeqRecordIterableDataset, **more), **options
        )

    first = loader()
    iterator = iter(first)
    for _ in range(2):
        next(iterator)
    state = first.state_dict()
    old = values([*iter(resumed(loader(), state))])
    append(path, 2, 4)
    grown = resumed(loader(normalization="state"), state)
    assert values([*iter(grown)]) == old
    following = values([*iter(grown)])
    assert {"e2", "e3"} & {key[1] for key in following}
    common = old.keys() & following.keys()
    assert common
    assert all(following[key] == old[key] for key in common)
    with pytest.raises(StateError, match="another normalization"):
        next(iter(resumed(loader(), state)))


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_other_samples_in_a_stateful_dataloader(path: Path, num_workers: int) -> None:
    """Only its workers have loaded the state."""
    options: dict[str, Any] = {"batch_size": None, "num_workers": num_workers}
    dataset = make(path, kind=seqrecord.SeqRecordIterableDataset)
    first = StatefulDataLoader(dataset, **options)
    next(iter(first))
    state = first.state_dict()
    append(path, 2, 4)
    dataset = make(path, kind=seqrecord.SeqRecordIterableDataset, normalization="state")
    loader: Any = StatefulDataLoader(dataset, **options)
    loader.load_state_dict(state)
    rest = values([*loader])
    dataset.set_samples(None)
    following = values([*StatefulDataLoader(dataset, **options)])
    common = rest.keys() & following.keys()
    assert common
    assert all(following[key] == rest[key] for key in common)


@pytest.mark.parametrize("renames", [(None, {"state": "s"}), ({"state": "s"}, {"state": "t"})])
def test_normalized_features_under_other_names(path: Path, renames: Any) -> None:
    """A state does not depend on them, also with the numbers of the state."""

    def renamed(rename: Any, **options: Any) -> Any:
        name = (rename or {}).get("state", "state")
        vectors = {name: Vector(normalize="mean_std")}
        options |= {"clip_len": 3, "batch_size": 4, "rename": rename}
        return name, SeqRecordPipe(path, vectors=vectors, **options)

    (name, loader), (other_name, other) = map(renamed, renames)
    state = saved(loader)
    expected = [batch[name].tolist() for batch in resumed(loader, state)]
    assert [batch[other_name].tolist() for batch in resumed(other, state)] == expected
    append(path, 2, 4)
    _, grown = renamed(renames[1], normalization="state")
    assert [batch[other_name].tolist() for batch in resumed(grown, state)] == expected
