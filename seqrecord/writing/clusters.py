"""Runs the jobs of a conversion on an executor, or on a Dask cluster."""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from seqrecord.errors import DestinationError
from seqrecord.lazy import import_extra
from seqrecord.writing.convert_jobs import (
    Job,
    JobResult,
    PackedJob,
    StoppedError,
    Workers,
    write_copy,
)

_REPORT_SECONDS = 0.5  # longer than for local workers: reports go over the network


def open_workers(
    executor: Executor | str | None,
) -> contextlib.AbstractContextManager[Workers | None]:
    """Runner for an executor or a cluster address while the block runs; `None` for `None`."""
    if isinstance(executor, str):
        return open_cluster(executor)
    return contextlib.nullcontext(None if executor is None else Workers(executor))


@contextlib.contextmanager
def open_cluster(address: str) -> Iterator[Workers]:
    """Connect to `dask://HOST:PORT`; the connection ends with the block.

    Raises `DestinationError` for another kind of address, for an address without an answer, and for
    a cluster without workers. Raises `MissingPackageError` without the package `distributed`.
    """
    parts = urlsplit(address)
    if parts.scheme != "dask" or not parts.netloc:
        raise DestinationError("invalid cluster address", expected="dask://HOST:PORT", got=address)
    remedy = "Dask clusters need distributed, the extra `dask`: pip install distributed"
    distributed = import_extra("distributed", remedy)
    try:
        client = distributed.Client(f"tcp://{parts.netloc}", set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise DestinationError(
            "no cluster answers at this address", got=f"{address}: {error}"
        ) from error
    with client:
        cluster = _Dask(distributed, client)
        if not cluster.count:
            raise DestinationError("the cluster has no workers", got=address)
        yield cluster


class _Dask(Workers):
    """Workers of a Dask cluster, and the frames that they have written.

    If a worker is lost, Dask runs its job on another one, three times by default. Dask releases
    jobs of cancelled futures, and running jobs check for it.
    """

    reports = True

    def __init__(self, distributed: ModuleType, client: Any) -> None:
        super().__init__(client.get_executor(pure=False))
        killed = distributed.scheduler.KilledWorker
        self.broken: tuple[type[BaseException], ...] = (killed, CancelledError)
        self.count = sum(client.nthreads().values())
        self._lock = threading.Lock()
        self._frames: int | None = None  # without a report since `take`
        self._topic = f"seqrecord-{uuid.uuid4().hex}"
        client.subscribe_topic(self._topic, lambda event: self._add(event[1]))

    def submit(self, job: Job) -> Future[JobResult]:
        return self._executor.submit(_write_on_dask, PackedJob(job), self._topic)

    def take(self) -> int | None:
        with self._lock:
            frames, self._frames = self._frames, None
        return frames

    def _add(self, frames: int) -> None:
        with self._lock:
            self._frames = (self._frames or 0) + frames


def _write_on_dask(job: PackedJob, topic: str) -> JobResult:
    """Run a job on a worker: report frames, and stop once nobody waits for the job."""
    worker = importlib.import_module("distributed").get_worker()
    key = worker.get_current_task()
    frames, last = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal frames, last
        frames += count
        if time.monotonic() - last >= _REPORT_SECONDS:
            task = worker.state.tasks.get(key)
            if task is None or task.state != "executing":
                raise StoppedError("stopped")
            worker.log_event(topic, frames)
            frames, last = 0, time.monotonic()

    written = write_copy(job, advance)
    worker.log_event(topic, frames)
    return written
