"""Conversion on local clusters of Dask and Ray."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

import seqrecord
from seqrecord import convert
from seqrecord.errors import DestinationError, SourceError
from seqrecord.formats.converting.clusters import open_cluster
from seqrecord.formats.converting.convert_jobs import write_copy
from seqrecord.types import Progress
from tests.kit.datasets import contents
from tests.kit.made_source import MadeSource
from tests.kit.processes import free_port, run_python, wait_for
from tests.kit.services.places import CLOUDS, Place

SMALL: dict[str, Any] = {"chunk_frames": 4, "max_file_size": "60kB"}

slow = pytest.mark.slow


def test_other_addresses_are_refused(tmp_path: Path) -> None:
    for address in ("dask:/nowhere", "spark://host:1", "", "dask://"):
        with pytest.raises(DestinationError, match="invalid cluster address"):
            convert(MadeSource(), tmp_path / "d", executor=address)
    assert not (tmp_path / "d").exists()


@pytest.fixture(scope="module")
def dask() -> Iterator[str]:
    """Two worker processes of one thread each."""
    distributed = pytest.importorskip("distributed", reason="pip install distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster.scheduler_address.replace("tcp://", "dask://")


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head of two CPUs, with a client server."""
    pytest.importorskip("ray", reason="pip install 'ray[client]'")
    port = free_port()
    command = ["-m", "ray.scripts.scripts"]
    start = [*command, "start", "--head", "--num-cpus=2", f"--port={free_port()}"]
    start += [f"--ray-client-server-port={port}", "--include-dashboard=false"]
    start += ["--disable-usage-stats", "--object-store-memory=100000000"]
    run_python(*start, timeout=120)
    yield f"ray://127.0.0.1:{port}"
    run_python(*command, "stop", "--force")


@slow
@pytest.mark.parametrize("cluster", ["dask", "ray"])
def test_on_a_cluster(tmp_path: Path, cluster: str, request: pytest.FixtureRequest) -> None:
    """Ray has no other test, since `ray stop` ends all Ray processes of this machine."""
    executor: str = request.getfixturevalue(cluster)
    seen: list[Progress] = []
    source, folder = MadeSource((9, 30, 14, 20), delay=0.1), tmp_path / "set"
    report = convert(source, folder, executor=executor, progress=seen.append, max_file_size="1MB")
    assert report.manifest.num_frames == 73
    assert seqrecord.verify(folder, deep=True).ok
    frames = [progress.done for progress in seen]
    assert frames == sorted(frames)
    assert frames[-1] == 73
    with pytest.raises(SourceError, match="made to fail") as caught:
        convert(MadeSource(bad={4: 2}), tmp_path / "bad", executor=executor, **SMALL)
    assert (caught.value.episode, caught.value.frame) == ("made/004", 2)


@slow
def test_a_bad_episode_is_reported(tmp_path: Path, dask: str) -> None:
    with pytest.raises(SourceError, match="made to fail"):
        convert(MadeSource(bad={4: 2}), tmp_path / "set", executor=dask, **SMALL)
    report = convert(MadeSource(), tmp_path / "set", mode="resume", executor=dask, **SMALL)
    assert {*report.skipped, *report.written} == {e.key for e in MadeSource().episodes()}
    bad, other = MadeSource(bad={1: 0}), tmp_path / "other"
    report = convert(bad, other, executor=dask, skip_bad_episodes=True, **SMALL)
    assert [each.key for each in report.bad] == ["made/001"]


@slow
def test_an_interrupt_stops_the_jobs(tmp_path: Path, dask: str) -> None:
    source, folder = MadeSource((9, 4, 100_000), delay=0.01), tmp_path / "set"  # in two jobs

    def interrupt(progress: Progress) -> None:
        if progress.done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, folder, executor=dask, progress=interrupt, **SMALL)

    def is_quiet() -> bool:
        before = contents(folder)
        time.sleep(3)  # frames come every 10 ms
        return contents(folder) == before

    wait_for(is_quiet, seconds=100)
    report = convert(MadeSource((9, 4)), folder, mode="resume", workers=1, **SMALL)
    assert len(report.written) + len(report.skipped) == 2


_NO_SERVER = ConnectionAbortedError("Initialization failure from server:\npsutil.ZombieProcess: …")
_NO_HEAD = ConnectionError("ray client connection timeout")


@pytest.mark.parametrize(
    ("errors", "attempts", "opens"),
    [
        ((_NO_SERVER, _NO_SERVER), 3, True),
        ((_NO_SERVER,) * 9, 4, False),
        ((_NO_HEAD,) * 9, 1, False),
        ((_NO_SERVER, _NO_HEAD), 2, False),
    ],
)
def test_a_connection_to_ray_whose_server_ends_is_retried(
    errors: tuple[Exception, ...], attempts: int, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = MagicMock()
    head.init.side_effect = [*errors, contextlib.nullcontext()]
    head.cluster_resources.return_value = {"CPU": 2}
    monkeypatch.setitem(sys.modules, "ray", head)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    error = pytest.raises(DestinationError, match="no cluster answers")
    with contextlib.nullcontext() if opens else error, open_cluster("ray://host:1") as cluster:
        assert cluster.count == 2
    assert head.init.call_count == attempts


class _FakeRay:
    """Runs jobs in threads. `lost` is the error of all jobs."""

    def __init__(self, lost: type[Exception] | None = None) -> None:
        names = ("RayTaskError", *_LOST)
        ray_error = type("RayError", (Exception,), {})
        self.exceptions = SimpleNamespace(
            RayError=ray_error, **{name: type(name, (ray_error,), {}) for name in names}
        )
        self.lost = lost
        self.pool = ThreadPoolExecutor(2)

    def init(self, *_: object, **__: object) -> contextlib.AbstractContextManager[object]:
        return self.pool

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, _: Any) -> Any:
        return SimpleNamespace(remote=self._submit)

    def _submit(self, job: Any) -> Any:
        future: Future[Any] = Future()
        if self.lost is None:
            future = self.pool.submit(write_copy, job)
        else:
            future.set_exception(self.lost("gone"))
        return SimpleNamespace(future=lambda: future)

    def cancel(self, _: object) -> None:
        raise ConnectionError


_LOST = (
    *("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "OwnerDiedError"),
    *("ObjectLostError", "LocalRayletDiedError"),
)


def test_jobs_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", _FakeRay())
    report = convert(MadeSource(), tmp_path / "d", executor="ray://host:1", **SMALL)
    assert report.manifest.num_frames == sum(MadeSource().lengths)


@pytest.mark.parametrize("name", [*_LOST, "ConnectionError"])
def test_jobs_that_ray_loses_are_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = _FakeRay()
    ray.lost = getattr(ray.exceptions, name, ConnectionError)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(DestinationError, match=f"a worker died before.*{name}: gone"):
        convert(MadeSource(), tmp_path / "d", executor="ray://host:1", **SMALL)


class _Lent(MadeSource):
    """A source whose class a worker cannot import."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _import, ("a_module_of_the_caller",)


def _import(name: str) -> object:
    return importlib.import_module(name)


class _Newer(ThreadPoolExecutor):
    """The command has another version."""

    def submit(self, write: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        content = pickle.dumps(args).replace(seqrecord.__version__.encode(), b"9.8.7")
        return super().submit(write, *pickle.loads(content))


@pytest.mark.parametrize(
    ("source", "pool", "message"),
    [
        (MadeSource(), _Newer, f"another version .*expected: 9.8.7; got: {seqrecord.__version__}"),
        (_Lent(), ThreadPoolExecutor, "cannot import .*a_module_of_the_caller"),
    ],
)
def test_other_packages_on_a_worker_are_an_error(
    source: MadeSource, pool: type[ThreadPoolExecutor], message: str, tmp_path: Path
) -> None:
    with pool(1) as executor, pytest.raises(DestinationError, match=message):
        convert(source, tmp_path / "d", executor=executor)


@slow
def test_jobs_of_a_killed_worker_are_done_by_another(tmp_path: Path, dask: str) -> None:
    distributed = pytest.importorskip("distributed")
    source = MadeSource(delay=0.05)
    with distributed.Client(dask.replace("dask", "tcp"), set_as_default=False) as client:
        pids = list(client.run(os.getpid).values())

        def kill(progress: Progress) -> None:
            if progress.done and pids:
                os.kill(pids[0], signal.SIGKILL)
                pids.clear()

        report = convert(source, tmp_path / "d", executor=dask, progress=kill, **SMALL)
    assert not pids
    assert report.manifest.num_frames == sum(source.lengths)
    with seqrecord.open(tmp_path / "d") as dataset:
        assert list(dataset.episodes) == [info.key for info in MadeSource().episodes()]


@slow
def test_an_unreachable_cluster_is_an_error(tmp_path: Path) -> None:
    # Before the setting, since importing distributed changes the configuration.
    pytest.importorskip("distributed", reason="pip install distributed")
    dask_config = pytest.importorskip("dask.config")
    address = f"dask://127.0.0.1:{free_port()}"
    with (
        dask_config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(DestinationError, match="no cluster answers"),
    ):
        convert(MadeSource(), tmp_path / "d", executor=address)


@slow
@pytest.mark.parametrize("place", CLOUDS[:2], indirect=True)
def test_into_object_stores(dask: str, place: Place) -> None:
    report = convert(MadeSource(), place.url, executor=dask, storage_options=place.options, **SMALL)
    assert len(report.written) == 8
    assert len(report.manifest.record_files) > 1
    assert seqrecord.verify(place.url, deep=True, storage_options=place.options).ok
