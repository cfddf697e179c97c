"""`rotate_phase` and `repeat` through the loaders."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord.arena import Arena
from seqrecord.errors import ClipError, StateError
from seqrecord.pipes import SeqRecordNode, SeqRecordPipe, SeqRecordStream
from tests.clip_data import check, names, possible_clips, write_numbered
from tests.resume_contract import check_resume

# torch warns of more workers than cores, and of what torchdata does to it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
FEATURES = ["image", "id"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("turns") / "records")


def make(path: Path, kind: type[Any] = SeqRecordPipe, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "clip_len": 3,
        "stride": 4,
        "rotate_phase": True,
        "features": FEATURES,
        "batch_size": 4,
        "shuffle_buffer": 16,
        "seed": 5,
    }
    return kind(path, **{**settings, **changes})


def every_clip(**changes: Any) -> list[tuple[str, int]]:
    return sorted(possible_clips(changes.get("features", FEATURES), changes.get("clip_len", 3)))


# ---- rotate_phase


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shuffle": False},
        {"batch_size": None},
        {"stride": 7, "features": ["flow"]},
        {"stride": 40, "clip_len": 2, "features": ["note"]},  # phase 39 has no clip
        {"repeat": 2},
    ],
)
def test_so_many_epochs_cover_every_clip(path: Path, changes: dict[str, Any]) -> None:
    pipe = make(path, **changes)
    num_phases = len(pipe._epochs.loader.selection.phases)
    assert num_phases == min(changes.get("stride", 4), 39)
    for _ in range(2):
        clips: list[tuple[str, int]] = []
        for _ in range(num_phases):
            expected, total = len(pipe), pipe.num_clips
            assert pipe.clips.num_clips * changes.get("repeat", 1) == total
            batches = [names(batch) for batch in pipe]
            assert len(batches) == expected
            assert sum(map(len, batches)) == total > 0
            clips += [name for batch in batches for name in batch]
            phases = {start % changes.get("stride", 4) for batch in batches for _, start in batch}
            assert len(phases) == 1
        assert sorted(clips) == sorted(every_clip(**changes) * changes.get("repeat", 1))


@pytest.mark.parametrize("dilation", [1, 2])
def test_clips_are_whole(path: Path, dilation: int) -> None:
    features = ["image", "flow", "note", "id"]
    pipe = make(path, features=features, repeat=3, dilation=dilation)
    clips = [
        name for _ in range(4) for batch in pipe for name in check(batch, features, 3, dilation)
    ]
    assert sorted(clips) == sorted(possible_clips(features, 3, dilation=dilation) * 3)


def test_figures_are_those_of_the_epoch_that_runs_or_else_of_the_next(path: Path) -> None:
    pipe = make(path)
    lengths = []
    for epoch in range(8):
        pipe.set_epoch(epoch)
        lengths.append(pipe.num_clips)
    assert len(set(lengths)) > 1
    first = lengths.index(min(lengths))
    pipe.set_epoch(first)
    iterator = iter(pipe)
    next(iterator)
    assert pipe.num_clips == pipe.clips.num_clips == lengths[first]
    del iterator  # left early: the next one is of another epoch
    assert pipe.num_clips == lengths[first + 1]
    list(pipe)
    assert pipe.num_clips == lengths[first + 2]


def test_stats_count_what_this_epoch_leaves_out(path: Path) -> None:
    pipe = make(path, features=["flow"], shuffle=False)
    incomplete = 0
    for _ in range(4):
        clips = list(pipe)
        stats = pipe.stats()
        assert stats["clips"] == sum(map(len, map(names, clips)))
        incomplete += stats["clips_incomplete"]
    one = SeqRecordPipe(path, clip_len=3, features=["flow"]).clips
    assert incomplete == one.num_incomplete


def test_all_phases_share_one_arena(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make_arena = Arena.__init__

    def init(arena: Arena, *args: Any, **kwargs: Any) -> None:
        make_arena(arena, *args, **kwargs)
        made.append(arena.num_rows)

    monkeypatch.setattr(Arena, "__init__", init)
    pipe = make(path, memory_limit=15_000)
    for _ in range(4):
        list(pipe)
    assert len(made) == 1


def test_repr_tells_of_turns(path: Path) -> None:
    assert f"{len(every_clip())} clips in turns of 4 epochs" in repr(make(path))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_lengths_of_a_loader(path: Path, workers: int, persistent: bool) -> None:
    pipe = make(path, batch_size=2)
    loader = DataLoader(pipe, batch_size=None, num_workers=workers, persistent_workers=persistent)
    clips: list[tuple[str, int]] = []
    lengths = []
    for _ in range(4):
        lengths.append(len(loader))
        batches = [names(batch) for batch in loader]
        assert len(batches) == lengths[-1]
        clips += [name for batch in batches for name in batch]
    assert len(set(lengths)) > 1
    assert sorted(clips) == every_clip()


def test_set_epoch_counts_from_there_in_workers_too(path: Path) -> None:
    pipe = make(path)
    loader = DataLoader(pipe, batch_size=None, num_workers=1)
    epochs = [[names(batch) for batch in loader] for _ in range(4)]
    for start in (0, 2):
        pipe.set_epoch(start)
        for epoch in epochs[start : start + 2]:
            assert len(loader) == len(epoch)
            assert [names(batch) for batch in loader] == epoch


def test_ranks_have_equally_many_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    for repeat in (1, 5):
        clips: list[tuple[str, int]] = []
        counts = []
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            pipe = make(path, repeat=repeat)
            epochs = [[names(batch) for batch in pipe] for _ in range(4)]
            counts.append([len(epoch) for epoch in epochs])
            clips += [name for epoch in epochs for batch in epoch for name in batch]
        assert counts[0] == counts[1] == counts[2]
        assert sorted(clips) == sorted(every_clip() * repeat)


def test_too_many_ranks_for_some_epoch_are_refused_in_any(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"stride": 30, "features": ["id"], "episodes": "set/[03]"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    for epoch in range(30):  # some of the phases have one clip, the others two
        pipe = make(path, **settings)
        pipe.set_epoch(epoch)
        with pytest.raises(ClipError, match=r"some phase.*at least 2 clips; got: 1"):
            next(iter(pipe))
        pipe = make(path, **settings, drop_last=True)
        pipe.set_epoch(epoch)
        assert list(pipe) == []  # no batch of 4, on any rank


# ---- both, and resuming


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": None, "stride": 9},
        {"shuffle": False, "stride": 3},
        {"repeat": 3},
        {"repeat": 2, "rotate_phase": False, "drop_last": True},
        {"repeat": 4, "shuffle": False, "batch_size": 7},
    ],
)
@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordStream])
def test_resuming_after_any_batch(path: Path, kind: type[Any], changes: dict[str, Any]) -> None:
    check_resume(lambda: make(path, kind, **changes))


def test_resuming_a_stateful_loader_with_workers(path: Path) -> None:
    def loader() -> Any:
        stream = make(path, SeqRecordStream, repeat=2)
        return StatefulDataLoader(stream, batch_size=None, num_workers=2)

    check_resume(
        loader,
        positions=lambda n: [1, n // 2, n - 1],
        set_epoch=_set_epoch,
    )


def _set_epoch(loader: Any, epoch: int) -> None:
    loader.dataset.set_epoch(epoch)


def test_a_state_of_other_phases_is_refused(path: Path) -> None:
    pipe = make(path)
    for changes in ({"rotate_phase": False}, {"repeat": 2}, {"seed": 6}, {"stride": 2}):
        with pytest.raises(StateError, match="other settings"):
            pipe.load_state_dict(make(path, **changes).state_dict())


# ---- repeat


@pytest.mark.parametrize("changes", [{}, {"shuffle": False}, {"batch_size": None}])
def test_repeat_gives_every_clip_so_often_and_reads_it_once(
    path: Path, changes: dict[str, Any]
) -> None:
    settings = {"stride": 1, "rotate_phase": False, **changes}
    once, thrice = make(path, **settings), make(path, **settings, repeat=3)
    assert (len(thrice), thrice.num_clips) == (
        -(-3 * once.num_clips // (settings.get("batch_size", 4) or 1)),
        3 * once.num_clips,
    )
    for _ in range(2):
        expected = Counter(name for batch in once for name in names(batch))
        found = Counter(name for batch in thrice for name in check(batch, FEATURES, 3))
        assert found == Counter({name: 3 * count for name, count in expected.items()})
        for figure in ("bytes_read", "frames_decoded"):
            assert thrice.stats()[figure] == once.stats()[figure]
        assert thrice.stats()["clips"] == 3 * once.stats()["clips"]


def test_repeat_without_shuffle_goes_window_by_window(path: Path) -> None:
    pipe = make(path, stride=1, rotate_phase=False, shuffle=False, repeat=2, batch_size=None)
    clips = [name for clip in pipe for name in names(clip)]
    order = possible_clips(FEATURES, 3)
    place = {name: i for i, name in enumerate(order)}
    steps = [place[b] - place[a] for a, b in pairwise(clips)]
    back = [step for step in steps if step != 1]
    assert all(step <= 0 for step in back)
    assert len(back) > 1
    assert [name for i, name in enumerate(clips) if name not in clips[:i]] == order


def test_a_node_repeats_too(path: Path) -> None:
    node = make(path, SeqRecordNode, repeat=2)
    node.reset()
    assert len([name for batch in node for name in names(batch)]) == node.stats()["clips"]
