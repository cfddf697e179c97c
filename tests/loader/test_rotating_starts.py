"""`every(n, rotate=True)` through the loaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordPipe
from seqrecord.samples import every
from tests.kit.clip_data import make_loader, names, possible_clips
from tests.loader.resume_contract import check_resume

# torch warns about more workers than cores, and about calls by torchdata.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
FEATURES = ["image", "id"]


def make(path: Path, kind: type[Any] = SeqRecordPipe, **changes: Any) -> Any:
    usual = {"samples": every(changes.pop("n", 4), rotate=True), "features": FEATURES}
    return make_loader(path, kind, **{**usual, **changes})


def make_at(path: Path, epoch: int, **changes: Any) -> Any:
    """A loader that starts with this epoch."""
    pipe = make(path, **changes)
    pipe.set_epoch(epoch)
    return pipe


def every_clip() -> list[tuple[str, int]]:
    return sorted(possible_clips(FEATURES, 3))


@pytest.mark.parametrize(
    ("workers", "persistent"),
    [(0, False), (2, True), pytest.param(2, False, marks=pytest.mark.slow)],
)
def test_lengths_of_a_loader(path: Path, workers: int, persistent: bool) -> None:
    pipe = make(path, batch_size=2)
    loader: Any = DataLoader(
        pipe, batch_size=None, num_workers=workers, persistent_workers=persistent
    )
    clips: list[tuple[str, int]] = []
    lengths = []
    for _ in range(4):
        lengths.append(len(loader))
        batches = [names(batch) for batch in loader]
        assert len(batches) == lengths[-1]
        clips += [name for batch in batches for name in batch]
    assert len(set(lengths)) > 1
    assert sorted(set(clips)) == every_clip()
    assert workers or len(clips) == len(set(clips))


def test_set_epoch_counts_from_there_in_workers_too(path: Path) -> None:
    pipe = make(path)
    loader: Any = DataLoader(pipe, batch_size=None, num_workers=1)
    epochs = [[names(batch) for batch in make_at(path, epoch)] for epoch in (2, 3)]
    pipe.set_epoch(2)
    for epoch in epochs:
        assert len(loader) == len(epoch)
        assert [names(batch) for batch in loader] == epoch


def test_an_epoch_without_a_batch_is_refused(path: Path) -> None:
    settings: dict[str, Any] = {"n": 30, "features": ["id"], "episodes": "set/[03]"}
    settings |= {"batch_size": 1, "rank": (1, 2)}
    sizes = set()
    for epoch in range(1, 30, 4):  # some phases have a single clip
        pipe = make_at(path, epoch, **settings)
        assert len(pipe) == -(-pipe.clips.num_clips // 2) > 0
        sizes.add(pipe.clips.num_clips)
        pipe = make_at(path, epoch, **settings, last_batch="drop")
        if pipe.clips.num_clips == 1:
            with pytest.raises(ClipError, match=r"no batch at all.*at least 2 clips.*got: 1 clips"):
                next(iter(pipe))
    assert 1 in sizes


# ---- resuming


@pytest.mark.slow
def test_resuming_a_stateful_loader_with_workers(path: Path) -> None:
    def loader() -> Any:
        stream = make(path, SeqRecordIterableDataset)
        return StatefulDataLoader(stream, batch_size=None, num_workers=2)

    check_resume(
        loader,
        positions=lambda n: [n // 2, n - 1],
        set_epoch=_set_epoch,
    )


def _set_epoch(loader: Any, epoch: int) -> None:
    loader.dataset.set_epoch(epoch)
