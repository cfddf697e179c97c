"""Runners of conversion jobs on an executor, or on a Dask or Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from seqrecord.errors import DestinationError
from seqrecord.formats.converting.convert_jobs import (
    Job,
    JobResult,
    PackedJob,
    StoppedError,
    Workers,
    write_copy,
)
from seqrecord.store.lazy import import_extra

# Ray's client server ends at once on a busy head; see
# tests/formats/test_clusters.py::test_a_connection_to_ray_whose_server_ends_is_retried.
_TRIES = 4
_WAIT_SECONDS = 1.0  # between tries
_CHECK_SECONDS = 0.5  # between checks whether a job is still wanted


def open_workers(
    executor: Executor | Workers | str | None,
) -> contextlib.AbstractContextManager[Workers | None]:
    """Runner for an executor or a cluster address while the block runs; `None` for `None`."""
    if isinstance(executor, str):
        return open_cluster(executor)
    if executor is None or isinstance(executor, Workers):
        return contextlib.nullcontext(executor)
    return contextlib.nullcontext(Workers(executor))


@contextlib.contextmanager
def open_cluster(address: str) -> Iterator[Workers]:
    """Connect to `dask://HOST:PORT` or `ray://HOST:PORT`; the connection ends with the block.

    Raises `DestinationError` for another kind of address, for an address without an answer, and for
    a cluster without workers. Raises `MissingPackageError` if the cluster's package is not
    installed.
    """
    scheme = urlsplit(address).scheme
    if scheme not in _OPENING or not urlsplit(address).netloc:
        raise DestinationError(
            "invalid cluster address",
            expected="dask://HOST:PORT or ray://HOST:PORT",
            got=address,
        )
    with _OPENING[scheme](address) as cluster:
        if not cluster.count:
            raise DestinationError("the cluster has no workers", got=address)
        yield cluster


# Dask


class _Dask(Workers):
    """Workers of a Dask cluster.

    If a worker is lost, Dask runs its job on another one, three times by default.
    """

    def __init__(self, distributed: ModuleType, client: Any) -> None:
        super().__init__(client.get_executor(pure=False), _write_on_dask)
        killed_worker = distributed.scheduler.KilledWorker
        self.broken: tuple[type[BaseException], ...] = (killed_worker, CancelledError)
        self.count = sum(client.nthreads().values())


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Workers]:
    remedy = "Dask clusters need distributed, the extra `dask`: pip install distributed"
    distributed = import_extra("distributed", remedy)
    place = f"tcp://{urlsplit(address).netloc}"
    try:
        client = distributed.Client(place, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise _no_answer(address, error) from error
    with client:
        yield _Dask(distributed, client)


def _write_on_dask(job: PackedJob) -> JobResult:
    """Run a job on a worker until Dask releases it, as it does with jobs of cancelled futures."""
    worker = importlib.import_module("distributed").get_worker()
    key, check_time = worker.get_current_task(), time.monotonic()

    def advance(_: int) -> None:
        nonlocal check_time
        if time.monotonic() - check_time >= _CHECK_SECONDS:
            check_time, task = time.monotonic(), worker.state.tasks.get(key)
            if task is None or task.state != "executing":
                raise StoppedError("stopped")

    return write_copy(job, advance)


# Ray


class _LostError(Exception):
    """Ray lost a job: its worker, node or result, or the connection."""


class _Ray(Workers):
    """Workers of a Ray cluster.

    If a worker is lost, Ray runs its job on another one, three times by default.
    """

    broken: tuple[type[BaseException], ...] = (_LostError,)

    def __init__(self, ray: ModuleType) -> None:
        super().__init__()
        self.count = int(ray.cluster_resources().get("CPU", 0))
        self._ray = ray
        self._refs: list[Any] = []
        self._write = ray.remote(write_copy)

    def submit(self, job: Job) -> Future[JobResult]:
        ref = self._write.remote(PackedJob(job))
        self._refs.append(ref)
        future: Future[JobResult] = Future()

        def pass_on(ray_future: Future[JobResult]) -> None:
            if not future.cancelled():
                _pass_on(ray_future, future, self._ray.exceptions.RayTaskError)

        ref.future().add_done_callback(pass_on)
        return future

    def stop(self) -> None:
        with contextlib.suppress(Exception):  # without a connection the jobs end anyway
            for ref in self._refs:
                self._ray.cancel(ref)


@contextlib.contextmanager
def _ray(address: str) -> Iterator[Workers]:
    ray = import_extra("ray", "Ray clusters need ray, the extra `ray`: pip install 'ray[client]'")
    with _connect(ray, address):
        yield _Ray(ray)


def _connect(ray: ModuleType, address: str) -> Any:
    """Connect to Ray; the connection ends with its `with` block.

    Ray's head starts a server for each client. On a busy or freshly started head that server may
    end at once with `ConnectionAbortedError`; then connect again.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            return ray.init(address, log_to_driver=False)
        except ConnectionError as error:
            if not tries_left or not isinstance(error, ConnectionAbortedError):
                raise _no_answer(address, error) from error
            time.sleep(_WAIT_SECONDS)
    raise AssertionError("tried at least once")


def _pass_on(
    ray_future: Future[JobResult], future: Future[JobResult], wrapper: type[BaseException]
) -> None:
    """Set the outcome of Ray's future on ours.

    An error of the job loses Ray's wrapper; any other one becomes `_LostError`.
    """
    error = ray_future.exception()
    if error is None:
        future.set_result(ray_future.result())
    else:
        cause = getattr(error, "cause", None) if isinstance(error, wrapper) else None
        future.set_exception(cause or _LostError(f"{type(error).__name__}: {error}"))


def _no_answer(address: str, error: BaseException) -> DestinationError:
    return DestinationError("no cluster answers at this address", got=f"{address}: {error}")


_OPENING: dict[str, Callable[[str], contextlib.AbstractContextManager[Workers]]] = {
    "dask": _dask,
    "ray": _ray,
}
