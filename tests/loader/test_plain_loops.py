"""Epochs of DataLoaders with workers in a loop without `set_epoch`.

Epochs of iterations over one loader, named `0`, `1`, …; `1…`: left after its first batch. `-` is
`StateError`. Without workers every iteration is the next epoch, of all loaders.

| iterations                         | stream and mix before | stream and mix | pipe    |
|------------------------------------|-----------------------|----------------|---------|
| a loop over three epochs           | 0 - -                 | 0 1 2          | 0 1 2   |
| two DataLoaders in turn            | 0 - -                 | 0 1 2          | 0 1 2   |
| `set_epoch(5)`, then a loop        | 5 - -                 | 5 6 7          | 5 6 7   |
| other workers (2, 1, 2)            | 0 - -                 | 0 - 1          | 0 1 2   |
| left early                         | 0… - -                | 0… - -         | 0… 1 2  |
| two at the same time (`zip`)       | -, rarely 0 and 0     | -              | -, or two epochs |
| here, in workers, here             | 0 1 2                 | 0 1 2          | 0 1 2   |
| twice in an iteration, two of them | - -                   | 0 1, 2 3       | -       |
| a state inside epoch 1, a loop     | 1 - -                 | 1 2 3          |         |
| a state at the end of 0, a loop    | - - -                 | 1 2 3          |         |
| workers, then a started process    | 0, 0 -                | 0, 1 2         | 0, 1 2  |

`DataLoader` and `StatefulDataLoader`, all start methods, and persistent workers have equal results.
A state is that of a `StatefulDataLoader`, which a pipe does not have.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordMix, StateError
from tests.kit.clip_data import make_loader, names
from tests.kit.processes import run_code, run_python

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


def mix(path: Path) -> SeqRecordMix:
    sources = {
        name: SeqRecordIterableDataset(path, clip_len=3, features=["id"]) for name in ("a", "b")
    }
    return SeqRecordMix(sources, batch_size=4)


MAKE: dict[str, Any] = {
    "stream": partial(make_loader, kind=SeqRecordIterableDataset, features=["id"]),
    "mix": mix,
    "pipe": partial(make_loader, kind=seqrecord.SeqRecordPipe, features=["id"]),
}
LOADERS: dict[str, Any] = {
    "loader": partial(DataLoader, batch_size=None),
    "stateful": partial(StatefulDataLoader, batch_size=None),
}


KINDS_AND_LOADERS = [
    pair for pair in itertools.product(MAKE, LOADERS) if pair != ("pipe", "stateful")
]


@cache
def planned(path: Path, kind: str, num_workers: int = 2) -> list[Any]:
    """The batches of epochs 0 to 8, each set before."""
    data, epochs = MAKE[kind](path), []
    options = {"persistent_workers": True} if num_workers else {}
    loader = LOADERS["loader"](data, num_workers=num_workers, **options)
    for epoch in range(9):
        data.set_epoch(epoch)
        epochs.append([names(batch) for batch in loader])
    return epochs


class Run:
    """Iterations over DataLoaders around one loader, by the names of the module."""

    def __init__(self, path: Path, kind: str, around: str = "loader", **options: Any) -> None:
        self.path, self.kind, self.data = path, kind, MAKE[kind](path)
        self._options = {"multiprocessing_context": "fork", **options}
        self._around = LOADERS[around]

    def loader(self, num_workers: int = 2) -> Any:
        return self._around(self.data, num_workers=num_workers, **self._options)

    def of(self, loader: Any, most: int | None = None) -> str:
        """Iterate once: the name of the iteration."""
        iterator: Any = iter(loader)
        try:
            batches = [names(batch) for batch in itertools.islice(iterator, most)]
        except StateError:
            batches = []
        num_workers = getattr(loader, "num_workers", 0)
        if num_workers and (most or not batches) and not loader.persistent_workers:
            iterator._shutdown_workers()  # on garbage collection, torch waits 5 s per worker
        return self.name(batches, num_workers, most)

    def name(self, batches: list[Any], num_workers: int = 2, most: int | None = None) -> str:
        plans = [plan[:most] for plan in planned(self.path, self.kind, num_workers)]
        return f"{plans.index(batches)}{'…' if most else ''}" if batches else "-"

    def loop(self, loader: Any, count: int = 3) -> str:
        return " ".join(self.of(loader) for _ in range(count))


def around_loaders() -> Iterator[Any]:
    """Kinds in a DataLoader or StatefulDataLoader, persistent or not."""
    fast = [("stream", "loader", False)]
    for kind, around in KINDS_AND_LOADERS:
        for persistent in (False, True):
            case = kind, around, persistent
            yield pytest.param(*case, marks=() if case in fast else pytest.mark.slow)


EVERY = pytest.mark.parametrize(("kind", "around", "persistent"), list(around_loaders()))


@EVERY
def test_each_finished_iteration_is_followed_by_the_next_epoch(
    path: Path, kind: str, around: str, persistent: bool
) -> None:
    runs = Run(path, kind, around, persistent_workers=persistent)
    first, second = runs.loader(), runs.loader()
    assert " ".join(map(runs.of, (first, second, first))) == "0 1 2"
    assert runs.of(runs.data) == "3"  # in this process
    assert runs.of(second) == "4"
    runs.data.set_epoch(5)
    assert runs.loop(second) == "5 6 7"


@EVERY
def test_no_epoch_is_guessed_after_an_unfinished_iteration_or_other_workers(
    path: Path, kind: str, around: str, persistent: bool
) -> None:
    runs = Run(path, kind, around, persistent_workers=persistent)
    loader, is_pipe = runs.loader(), kind == "pipe"
    found = [runs.of(loader), runs.of(runs.loader(1)), runs.of(loader)]
    assert " ".join(found) == ("0 1 2" if is_pipe else "0 - 1")
    found = [runs.of(loader, 1), runs.of(loader), runs.of(loader)]
    assert " ".join(found) == ("3… 4 5" if is_pipe else "2… - -")
    runs.data.set_epoch(7)
    assert runs.loop(loader, 2) == "7 8"


@EVERY
def test_two_dataloaders_at_the_same_time(
    path: Path, kind: str, around: str, persistent: bool
) -> None:
    """Never the same epoch; also where a finished iteration came before."""
    for begun in range(2):
        runs = Run(path, kind, around, persistent_workers=persistent)
        assert runs.loop(runs.loader(), begun) == "0"[:begun]
        iterators: Any = [iter(runs.loader()) for _ in range(2)]
        pairs: list[Any] = []
        error = None
        try:
            pairs.extend(zip(*iterators, strict=True))
        except StateError as raised:
            error = raised
        for iterator in iterators:
            iterator._shutdown_workers()
        if kind != "pipe":
            assert re.search(r"set_epoch|copy.deepcopy\(loader\)", str(error))
            assert len(pairs) < 2
        assert all(names(a) != names(b) for a, b in pairs)


@pytest.mark.parametrize("is_begun", [False, True])
def test_workers_that_begin_after_a_later_set_epoch(path: Path, is_begun: bool) -> None:
    """They have the epoch that was set when they were started, unless it was begun before."""
    runs, event = Run(path, "stream"), multiprocessing.get_context("fork").Event()

    def wait(_: int) -> None:
        event.wait(60)

    late: Any = DataLoader(
        runs.data,
        batch_size=None,
        num_workers=1,
        multiprocessing_context="fork",
        worker_init_fn=wait,
    )
    loader = runs.loader(1)
    runs.data.set_epoch(3)
    found = [runs.of(loader)] if is_begun else []
    iterator = iter(late)
    runs.data.set_epoch(7)
    found.append(runs.of(loader))
    event.set()
    try:
        found.append(runs.name([names(batch) for batch in iterator], 1))
    except StateError:
        found.append("-")
        iterator._shutdown_workers()
    assert " ".join(found) == ("3 7 -" if is_begun else "7 3")


def test_an_order_that_is_the_same_in_all_epochs_may_run_twice_at_a_time(path: Path) -> None:
    data = make_loader(path, SeqRecordIterableDataset, features=["id"], shuffle=False)
    loaders = [DataLoader(data, batch_size=None, num_workers=1) for _ in range(2)]
    pairs = [(names(a), names(b)) for a, b in zip(*loaders, strict=True)]
    assert len(pairs) > 10
    assert all(a == b for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "around"), KINDS_AND_LOADERS)
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
def test_start_methods(path: Path, kind: str, method: str, around: str, persistent: bool) -> None:
    options = {"multiprocessing_context": method, "persistent_workers": persistent}
    runs = Run(path, kind, around, **options)
    loader = runs.loader()
    assert runs.loop(loader, 2) == "0 1"
    assert [runs.of(loader, 1), runs.of(loader)] == (["2…", "3"] if kind == "pipe" else ["2…", "-"])


@pytest.mark.parametrize("kind", ["stream", pytest.param("mix", marks=pytest.mark.slow)])
@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_states_of_a_plain_loop(path: Path, kind: str, persistent: bool) -> None:
    """A StatefulDataLoader continues in the epoch of its state, and after a finished one with the
    next. A state of the loader names the epoch that workers have begun last.
    """
    runs = Run(path, kind, "stateful", persistent_workers=persistent)
    loader = runs.loader()
    assert runs.of(loader) == "0"
    finished = loader.state_dict()
    iterator = iter(loader)
    batches = [names(next(iterator)) for _ in range(3)]
    inside = loader.state_dict()
    assert (runs.data.state_dict(batches=3)["epoch"], len(runs.data)) == (1, len(MAKE[kind](path)))
    assert runs.name(batches + [names(batch) for batch in iterator]) == "1"
    copied = copy.deepcopy(runs.data)
    assert runs.of(copied) == "2"
    assert runs.of(loader) == "2"
    for state, expected in ((finished, "1 2 3"), (inside, "2 3")):
        again = Run(path, kind, "stateful", persistent_workers=persistent).loader()
        again.load_state_dict(pickle.loads(pickle.dumps(state)))
        if state is inside:
            assert runs.name(batches + [names(batch) for batch in again]) == "1"
        assert runs.loop(again, len(expected.split())) == expected
    position = runs.data.state_dict(batches=2)
    assert position["epoch"] == 2
    again = Run(path, kind)
    again.data.load_state_dict(position)
    resumed = again.loader()
    rest = [names(batch) for batch in resumed]
    assert planned(path, kind)[2][2:] == rest
    assert again.loop(resumed, 2) == "3 4"


class Repeated(IterableDataset[Any]):
    """A user's dataset that repeats a loader in each iteration."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        for _ in range(2):
            yield from self.data


def test_a_loader_repeated_inside_another_dataset(path: Path) -> None:
    """Each worker goes on to the next epoch at its own pace."""
    runs = Run(path, "stream")
    loader = DataLoader(Repeated(runs.data), batch_size=None, num_workers=2)
    for first in (0, 2):
        clips = [clip for batch in loader for clip in names(batch)]
        epochs = planned(path, "stream")[first : first + 2]
        assert sorted(clips) == sorted(clip for epoch in epochs for b in epoch for clip in b)


def _loop_in_process(data: Any, queue: Any) -> None:
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
    queue.put([[names(batch) for batch in loader] for _ in range(2)])


@pytest.mark.parametrize("kind", ["stream", pytest.param("pipe", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(m, marks=pytest.mark.slow) for m in ("forkserver", "spawn"))]
)
def test_a_process_with_a_copy_continues_behind_the_workers_of_its_parent(
    path: Path, kind: str, method: str
) -> None:
    runs = Run(path, kind)
    loader = runs.loader()
    assert runs.of(loader) == "0"
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_loop_in_process, args=(runs.data, queue))
    process.start()
    assert list(map(runs.name, queue.get(timeout=120))) == ["1", "2"]
    process.join(60)
    assert runs.loop(loader, 2) == "1 2"  # epochs of its own


def test_nodes_and_map_style(path: Path) -> None:
    """A node's Loader has no workers. A map style dataset's order is that of the sampler; its own
    epoch reaches persistent workers, and no copy.
    """
    node = Loader(make_loader(path, seqrecord.SeqRecordNode, features=["id"]))
    stream = make_loader(path, SeqRecordIterableDataset, features=["id"])
    assert [names(batch) for batch in node] == [names(batch) for batch in stream]
    assert [names(batch) for batch in node] == [names(batch) for batch in stream]

    clips = seqrecord.SeqRecordMapDataset(path, clip_len=3, features=["id"], samples=_of_epoch)
    loader: Any = DataLoader(
        clips, None, sampler=[0], num_workers=1, persistent_workers=True, collate_fn=dict
    )
    copied, found = copy.deepcopy(clips), []
    for epoch in (0, 3, 1):
        clips.set_epoch(epoch)
        found.append(next(iter(loader))["start"])
        assert copied[0]["start"] == 0
    assert found == [0, 3, 1]


def _of_epoch(samples: Any, epoch: int, _: Any) -> Any:
    return samples.take(np.arange(epoch, len(samples)))


# ---- shared memory

_PREPARED = """
import os, resource
from pathlib import Path
from torch.utils.data import DataLoader
from torchdata.nodes import Loader
from seqrecord import *
from seqrecord.errors import ResourceError
from tests.kit.clip_data import make_loader, names
path = {path!r}
kinds = {{
    "pipe": lambda: make_loader(path, SeqRecordPipe, features=["id"]),
    "stream": lambda: make_loader(path, SeqRecordIterableDataset, features=["id"]),
    "node": lambda: make_loader(path, SeqRecordNode, features=["id"]),
    "map": lambda: SeqRecordMapDataset(path, clip_len=3, features=["id"]),
    "mix": lambda: SeqRecordMix({{"a": SeqRecordPipe(path, clip_len=3)}}, batch_size=4),
}}
def loading(data, workers):
    size = 4 if isinstance(data, SeqRecordMapDataset) else None
    context = {method!r} if workers else None
    return DataLoader(data, size, num_workers=workers, multiprocessing_context=context,
                      collate_fn=collate if size else dict)
"""


_COUNTED = """
def shared():
    files = [os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")]
    rows = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    files += [row[5] for row in rows if row[1].endswith("s") and len(row) > 5]
    places = "/dev/shm/", "/memfd:", "/dev/zero", "/pym-"
    return sorted(f for f in files if any(p in f for p in places) and "/sem." not in f)

before = shared()
for name, make in kinds.items():
    data = make()
    for loader in [Loader(data)] if name == "node" else [data, loading(data, 0)]:
        for item, _ in zip(loader, range(3)):
            assert shared() == before, (name, shared(), before)
assert len(list(loading(stream := kinds["stream"](), 1))) > 10
assert shared() != before
"""


def test_a_loader_without_workers_opens_no_shared_memory(path: Path) -> None:
    """Neither a file nor a mapping; with workers it has both."""
    run_code(_PREPARED.format(path=str(path), method=None) + _COUNTED)


_LIMITED = """
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
for name, make in kinds.items():
    data = make()
    assert len(list(Loader(data) if name == "node" else loading(data, 0))) > 10
    try:
        if name != "node":
            next(iter(loading(data, 1)))
    except SeqRecordError as error:
        assert type(error) is ResourceError, repr(error)
        assert "file descriptors" in str(error) and "num_workers=0" in str(error), error
    else:
        assert name == "node", name
"""


_TOGETHER = """
if __name__ == "__main__":
    for method in "fork", "forkserver", "spawn":
        pipes = [make_loader(path, SeqRecordPipe, features=["id"], seed=n) for n in range(3)]
        together = pipes[0].zip(*pipes[1:])
        batches = DataLoader(together, None, num_workers=2, multiprocessing_context=method)
        assert len(list(batches)) > 3, method
"""


@pytest.mark.slow
def test_several_loaders_in_one_worker(path: Path, tmp_path: Path) -> None:
    """Each has shared memory of its own, which a process passes to one that it starts."""
    script = tmp_path / "together.py"
    script.write_text(_PREPARED.format(path=str(path), method=None) + _TOGETHER)
    run_python(script)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_no_shared_memory_is_an_error_with_workers_only(path: Path, method: str) -> None:
    """Files of less than a page: semaphores fit into them, and no row."""
    run_code(_PREPARED.format(path=str(path), method=method) + _LIMITED)
