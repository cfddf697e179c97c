"""A memory limit is kept, and one that is too small says the least that would do."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqrecord import MemoryLimitError, SeqRecordPipe
from seqrecord.arena import Arena, BufferPool
from seqrecord.engine.loading import ChunkLoader
from tests.clip_data import names, possible_clips, write_numbered


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("memory") / "records")


requests = st.fixed_dictionaries(
    {
        "clip_len": st.integers(1, 6),
        "stride": st.integers(1, 9),
        "rotate_phase": st.booleans(),
        "dilation": st.integers(1, 3),
        "features": st.lists(
            st.sampled_from(["image", "flow", "id", "note"]), min_size=1, unique=True
        ),
        "batch_size": st.none() | st.integers(1, 9),
        "shuffle": st.booleans(),
        "shuffle_buffer": st.sampled_from([1, 16, 1000]),
        "open_episodes": st.none() | st.integers(1, 9),
        "num_threads": st.integers(1, 4),
    }
)


class Meter:
    """The bytes that an engine has in its arena, in buffers and in chunks being read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock = threading.RLock()
        self.most = self._now = 0
        meter = self
        make_arena, take = Arena.__init__, BufferPool.take
        load = ChunkLoader.__call__

        def init(arena: Arena, *args: Any, **kwargs: Any) -> None:
            make_arena(arena, *args, **kwargs)
            for array in arena._arrays.values():
                meter.add(array.nbytes)
                weakref.finalize(array, meter.add, -array.nbytes)

        def lend(pool: BufferPool) -> npt.NDArray[Any]:
            held = len(pool._free)
            array = take(pool)
            if not held:  # new memory
                meter.add(array.nbytes)
                weakref.finalize(array, meter.add, -array.nbytes)
            return array

        def read(loader: ChunkLoader, item: Any, places: Any) -> Any:
            reader = loader._dataset.chunk_reader()
            pages = reader.pages(reader.chunk_at(item.chunk, item.episode))
            nbytes = sum(page.stop - page.start for page in pages)
            meter.add(nbytes)
            try:
                return load(loader, item, places)
            finally:
                meter.add(-nbytes)

        monkeypatch.setattr(Arena, "__init__", init)
        monkeypatch.setattr(BufferPool, "take", lend)
        monkeypatch.setattr(ChunkLoader, "__call__", read)

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._now += nbytes
            self.most = max(self.most, self._now)


@settings(max_examples=40, deadline=None)
@given(request=requests)
def test_the_least_that_would_do(path: Path, request: dict[str, Any]) -> None:
    with pytest.raises(MemoryLimitError) as caught:
        SeqRecordPipe(path, **request, memory_limit=1)
    least = int(re.findall(r"at least (\d+) bytes", str(caught.value))[0])
    with pytest.raises(MemoryLimitError, match=f"at least {least} bytes"):
        SeqRecordPipe(path, **request, memory_limit=least - 1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        meter = Meter(monkeypatch)
        pipe = SeqRecordPipe(path, **request, memory_limit=least)
        phases = pipe._epochs.loader.selection.phases
        epochs = 1 if phases is None else len(phases)
        clips = [name for _ in range(epochs) for batch in pipe for name in names(batch)]
        assert meter.most <= least
    stride = request["stride"] if phases is None else 1
    expected = possible_clips(request["features"], request["clip_len"], stride, request["dilation"])
    assert sorted(clips) == sorted(expected)


def test_an_epoch_of_other_needs_begins_without_the_memory_of_the_one_before(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=5, batch_size=9)
    gc.disable()  # it would find a cycle some time
    try:
        for _batch in pipe:
            pass
        workspace = weakref.ref(pipe._epochs.loader._workspaces._idle.pop())
        assert workspace() is None
    finally:
        gc.enable()


@settings(max_examples=25, deadline=None)
@given(request=requests, limit=st.sampled_from([10_000, 30_000, 100_000, 300_000]))
def test_the_limit_is_kept(path: Path, request: dict[str, Any], limit: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        meter = Meter(monkeypatch)
        try:
            pipe = SeqRecordPipe(path, **request, memory_limit=limit)
        except MemoryLimitError:
            return
        for _ in range(2):
            for _batch in pipe:
                pass
        assert 0 < meter.most <= limit
        assert 0 < pipe.stats()["resident_bytes"] <= limit


@pytest.mark.parametrize("limit", ["none", -1, 1.5, "1 parsec", None])
def test_not_a_limit(path: Path, limit: Any) -> None:
    with pytest.raises(ValueError, match="memory_limit: not a size"):
        SeqRecordPipe(path, clip_len=2, memory_limit=limit)


def test_chunks_in_flight_take_a_part_of_the_limit(path: Path) -> None:
    loader = SeqRecordPipe(path, clip_len=2, memory_limit="64KiB")._epochs.loader
    sizes, fitted = loader._sizes, loader._fit(1)
    assert 1 <= fitted.max_loads < 16
    assert fitted.max_loads * sizes.chunk <= (64 << 10) // 8
    assert SeqRecordPipe(path, clip_len=2)._epochs.loader._fit(1).max_loads == 16
