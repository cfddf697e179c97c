"""An in-memory model of a storage, and a scheduler that interleaves its clients' calls.

A `Server` contains the stored files. Each actor runs a command and has a thread and a `Client`, its
storage. One thread runs at a time: before each call a client waits for the scheduler, so that a
history depends on the drawn choices only. A call may fail in the ways of `Fault`, and an actor may
be killed.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from seqrecord import errors
from seqrecord.errors import NotFoundError, TransientError
from seqrecord.store.checksum import Buffer
from seqrecord.store.storage.base import (
    FileInfo,
    Unfinished,
    Upload,
    UploadLimits,
    check_buffers,
    check_path,
    check_rewind,
    short_read,
    too_large,
)
from seqrecord.store.storage.ranges import ByteRange

_T = TypeVar("_T")


class Fault(Enum):
    """Effect of a fault on a call."""

    BUSY = "fails, not done"
    LOST = "done, but the answer is lost"
    LATE = "fails, and is done later"
    KILL = "the actor is killed before it"
    KILL_AFTER = "the actor is killed after it"


class Killed(BaseException):
    """The actor is killed: its later calls have no effect."""


@dataclass
class _File:
    data: bytes
    tag: str
    modified: float


@dataclass
class _Open:
    """An unfinished upload."""

    path: str
    modified: float
    data: bytearray = field(default_factory=bytearray)
    checkpoints: list[tuple[int, bytes]] = field(default_factory=list)
    is_over: bool = False

    def cut(self, offset: int) -> None:
        del self.data[offset:]
        self.checkpoints = [item for item in self.checkpoints if item[0] <= offset]


class Server:
    """Stored files and uploads. The clock advances by a second with each call.

    Without `keeps_uploads`, as an object store, uploads are invisible until they are committed.
    """

    def __init__(
        self, *, has_conditions: bool = True, keeps_uploads: bool = True, clock: float = 1e9
    ) -> None:
        self.has_conditions, self.keeps_uploads = has_conditions, keeps_uploads
        self.files: dict[str, _File] = {}
        self.uploads: list[_Open] = []
        self.clock = clock
        self._tags = 0

    def store(self, path: str, data: bytes) -> None:
        self._tags += 1
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        self.files[path] = _File(data, f"{digest}-{self._tags}", self.clock)

    def check(self, path: str, expected: str | None) -> None:
        stored = self.files.get(path)
        if (stored.tag if stored else None) != expected:
            raise errors.ConflictError("another file exists", file=path)

    def put(self, path: str, data: bytes, expected: str | None) -> None:
        self.check(path, expected)
        self.store(path, data)

    def commit(self, upload: _Open) -> None:
        if upload.path in self.files:
            raise errors.DestinationError("the file exists already", file=upload.path)
        self.store(upload.path, bytes(upload.data))
        self.end(upload)

    def end(self, upload: _Open) -> None:
        upload.is_over = True
        self.uploads = [each for each in self.uploads if each is not upload]

    def remove(self, path: str) -> None:
        self.files.pop(path, None)
        for upload in [each for each in self.uploads if each.path == path]:
            self.end(upload)


@dataclass(frozen=True)
class Step:
    """A call: its actor, name and file, and its fault."""

    actor: str
    call: str
    path: str
    fault: Fault | None = None

    def __str__(self) -> str:
        text = f"{self.actor:<12} {self.call:<12} {self.path}"
        return text if self.fault is None else f"{text}   <- {self.fault.value}"


class Actor:
    """A thread that runs one command on a client of its own; see `World`."""

    def __init__(self, world: World, name: str, do: Callable[[Client], object]) -> None:
        self.world, self.name, self.do = world, name, do
        self.is_killed = self.is_done = False
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)
        self.clock_is_ahead = 0.0
        self.asleep_until = 0  # number of steps, ignored if no other actor can continue
        self.naps: dict[int, int] = {}
        self.num_calls = 0
        self.outage = 0  # number of following calls that fail
        self.ids = random.Random(name)
        self.issued: list[str] = []  # random ids that it has drawn
        self._thread = threading.Thread(target=self._run, name=f"actor-{name}", daemon=True)

    @property
    def clock(self) -> float:
        """Clock of its machine, independent of the server's."""
        return self.world.time + self.clock_is_ahead

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self.go.acquire()
            self.do(Client(self.world, self))
        except BaseException as error:
            self.error = error
        self.is_done = True
        self.world.baton.release()


_RUNNING: list[Actor] = []


def current_actor() -> Actor | None:
    """The actor that runs now: all others wait."""
    return _RUNNING[-1] if _RUNNING else None


class World:
    """Runs actors on a server, one call at a time; `choose(n)` draws from 0 to n - 1.

    `faults` are tuples (name of the call or `""` for any, its number from 0, the fault, the number
    of others' calls until it is answered). `jumps` maps a call's number to the seconds by which a
    clock jumps before it and the number of the clock's actor, or `None` for the server. `after` is
    called after each call.
    """

    def __init__(
        self,
        server: Server,
        choose: Callable[[int], int],
        *,
        faults: Sequence[tuple[str, int, Fault, int]] = (),
        jumps: Mapping[int, tuple[float, int | None]] | None = None,
        after: Callable[[Step], None] = lambda step: None,
        most_steps: int = 5000,
    ) -> None:
        self.server, self._choose = server, choose
        self._faults = {(name, number): (fault, wait) for name, number, fault, wait in faults}
        self._jumps, self._counts = dict(jumps or {}), Counter[str]()
        self.time = 0.0  # elapsed seconds
        self._after, self._most = after, most_steps
        self.actors: list[Actor] = []
        self.late: list[tuple[str, str, Callable[[], None]]] = []
        self.steps: list[Step] = []
        self.baton = threading.Semaphore(0)

    def add(
        self,
        name: str,
        do: Callable[[Client], object],
        *,
        after: int = 0,
        naps: Iterable[tuple[int, int]] = (),
    ) -> Actor:
        """Add an actor that begins after `after` calls of others.

        `naps` are pairs: after its own call of a number it waits for some calls of others.
        """
        actor = Actor(self, name, do)
        actor.asleep_until, actor.naps = after, dict(naps)
        self.actors.append(actor)
        return actor

    def wait(self, seconds: float) -> None:
        """Let time pass for all clocks."""
        self.time += seconds
        self.server.clock += seconds

    def run(self) -> None:
        """Run all actors until they end, and all late calls."""
        for actor in self.actors:
            actor.start()
        try:
            while True:
                waiting = [actor for actor in self.actors if not actor.is_done]
                now = len(self.steps)
                ready = [actor for actor in waiting if actor.asleep_until <= now] or waiting
                count = len(ready) + len(self.late)
                if not count:
                    break
                if len(self.steps) > self._most:
                    raise AssertionError(f"not finished after {self._most} steps")
                number = self._choose(count) if count > 1 else 0
                if number < len(ready):
                    self._let_go(ready[number])
                else:
                    self._land(number - len(ready))
        finally:
            for actor in self.actors:
                while not actor.is_done:
                    actor.is_killed = True
                    self._let_go(actor)
                actor.join()

    def _let_go(self, actor: Actor) -> None:
        """Let an actor run until its next call or its end."""
        _RUNNING.append(actor)
        actor.go.release()
        self.baton.acquire()
        _RUNNING.pop()

    def _land(self, number: int) -> None:
        name, path, effect = self.late.pop(number)
        step = Step("late", name, path)
        self.steps.append(step)
        try:
            effect()
        except errors.SeqRecordError:
            return
        self._after(step)

    def call(self, actor: Actor, name: str, path: str, effect: Callable[[], _T]) -> _T:
        """Do an actor's call when it is its turn, or let it fail."""
        if actor.is_killed:
            raise Killed
        self.baton.release()
        actor.go.acquire()
        if actor.is_killed:
            raise Killed
        number = len(self.steps)
        nothing = (None, 0)
        fault, wait = self._faults.get(("", number), nothing)
        if fault is None:
            fault, wait = self._faults.get((name, self._counts[name]), nothing)
        self._counts[name] += 1
        actor.asleep_until = len(self.steps) + max(wait, actor.naps.get(actor.num_calls, 0))
        actor.num_calls += 1
        if actor.outage and fault is None and name != "sleep":
            fault, actor.outage = Fault.BUSY, actor.outage - 1
        step = Step(actor.name, name, path, fault)
        self.steps.append(step)
        self.wait(1)
        seconds, whose = self._jumps.get(number, (0.0, None))
        if whose is None:
            self.server.clock += seconds
        elif whose < len(self.actors):
            self.actors[whose].clock_is_ahead += seconds
        if fault is Fault.KILL:
            actor.is_killed = True
            raise Killed
        if fault is Fault.BUSY:
            raise TransientError("the storage is busy", file=path)
        if fault is Fault.LATE and name in _CHANGES:
            self.late.append((name, path, lambda: (effect(), None)[1]))
            actor.outage = 4  # or the next attempt would succeed
            raise TransientError("no answer", file=path)
        result = effect()
        self._after(step)
        if fault is Fault.KILL_AFTER:
            actor.is_killed = True
            raise Killed
        if fault in (Fault.LOST, Fault.LATE):
            raise TransientError("the answer was lost", file=path)
        return result


_CHANGES = ("put", "commit", "remove", "checkpoint")


class Client:
    """A `Storage` of one actor; without a `world` calls take effect at once."""

    def __init__(self, world: World | None, actor: Actor | None, server: Server | None = None):
        self._world, self._actor = world, actor
        self._server = server or world.server  # type: ignore[union-attr]
        self._ticks = itertools.count(0.0)  # so that about every second flush ends a file

    url = place = "model"

    def __repr__(self) -> str:
        return "Client('model')"

    def __reduce__(self) -> tuple[Any, ...]:
        number = id(self._server)
        _SERVERS[number] = self._server
        return _client_of, (number,)

    @property
    def has_conditions(self) -> bool:
        return self._server.has_conditions

    @property
    def upload_limits(self) -> UploadLimits | None:
        if self._server.keeps_uploads:
            return None
        return UploadLimits(flush_seconds=2, clock=self._ticks.__next__)

    def call(self, name: str, path: str, effect: Callable[[], _T]) -> _T:
        if self._world is None or self._actor is None:
            return effect()
        return self._world.call(self._actor, name, path, effect)

    def _file(self, path: str) -> _File:
        try:
            return self._server.files[check_path(path)]
        except KeyError:
            raise NotFoundError("no such file", file=f"{self.url}/{path}") from None

    def size(self, path: str) -> int:
        return self.call("size", path, lambda: len(self._file(path).data))

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)

        def read() -> None:
            data = self._file(path).data
            for item, buffer in zip(ranges, buffers, strict=True):
                if item.stop > len(data):
                    raise short_read(path, item, max(0, len(data) - item.start))
                buffer.cast("B")[:] = data[item.start : item.stop]

        self.call("read", path, read)

    def read_whole(self, path: str, limit: int) -> tuple[bytes, str]:
        def read() -> tuple[bytes, str]:
            file = self._file(path)
            if len(file.data) > limit:
                raise too_large(path, limit, len(file.data))
            return file.data, file.tag

        return self.call("read", path, read)

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        check_path(path)
        if self.has_conditions:
            self.call("put", path, lambda: self._server.put(path, bytes(data), expected))
        else:
            self.call("compare", path, lambda: self._server.check(path, expected))
            self.call("put", path, lambda: self._server.store(path, bytes(data)))

    def files(self, folder: str) -> list[FileInfo]:
        def listed() -> list[FileInfo]:
            return [
                FileInfo(path, len(file.data), file.modified)
                for path, file in sorted(self._server.files.items())
                if path.rpartition("/")[0] == folder and not path.startswith(f"{folder}/.")
            ]

        return self.call("list", check_path(folder), listed)

    def unfinished(self, folder: str) -> list[Unfinished]:
        def listed() -> list[Unfinished]:
            uploads = self._server.uploads if self._server.keeps_uploads else ()
            found = [each for each in uploads if each.path.startswith(f"{folder}/")]
            return [_Unfinished(self, each) for each in sorted(found, key=lambda each: each.path)]

        return self.call("unfinished", check_path(folder), listed)

    def create(self, path: str) -> Upload:
        def create() -> _Upload:
            upload = _Open(check_path(path), self._server.clock)
            self._server.uploads.append(upload)
            return _Upload(self, upload)

        return self.call("create", path, create)

    def remove(self, path: str) -> None:
        self.call("remove", check_path(path), lambda: self._server.remove(path))

    def local_path(self, path: str) -> str | None:
        check_path(path)
        return None

    def counters(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass


_SERVERS: WeakValueDictionary[int, Server] = WeakValueDictionary()


def _client_of(number: int) -> Client:
    return Client(None, None, _SERVERS[number])


class _Upload:
    def __init__(self, client: Client, upload: _Open) -> None:
        self._client, self._upload = client, upload
        self._server = client._server
        self._is_committed = False

    @property
    def path(self) -> str:
        return self._upload.path

    def _check(self) -> None:
        if self._upload.is_over:
            raise errors.StorageError("the upload is over", file=self.path)

    def write(self, data: Buffer) -> None:
        self._check()
        self._upload.data += bytes(memoryview(data).cast("B"))

    def tell(self) -> int:
        return len(self._upload.data)

    def checkpoint(self, note: bytes) -> None:
        self._check()
        if not self._server.keeps_uploads:
            return
        upload, size = self._upload, len(self._upload.data)

        def land() -> None:
            if not upload.is_over and len(upload.data) >= size:
                upload.checkpoints.append((size, bytes(note)))
                upload.modified = self._server.clock

        self._client.call("checkpoint", self.path, land)

    def rewind(self, offset: int) -> None:
        self._check()
        check_rewind(len(self._upload.data), offset)
        self._client.call("rewind", self.path, lambda: self._upload.cut(offset))

    def commit(self) -> None:
        self._check()
        self._client.call("commit", self.path, lambda: self._server.commit(self._upload))
        self._is_committed = True

    def abort(self) -> None:
        if not self._upload.is_over:
            self._client.call("abort", self.path, lambda: self._server.end(self._upload))


class _Unfinished:
    """An unfinished upload; its checkpoints are read on request."""

    def __init__(self, client: Client, upload: _Open) -> None:
        self._client, self._upload = client, upload
        self.path, self.modified = upload.path, upload.modified

    def _existing(self) -> _Open:
        if self._upload.is_over:
            raise NotFoundError("no such upload", file=self.path)
        return self._upload

    def checkpoints(self) -> list[tuple[int, bytes]]:
        return self._client.call("notes", self.path, lambda: self._existing().checkpoints[:])

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        def read() -> None:
            data = self._existing().data
            for item, buffer in zip(ranges, buffers, strict=True):
                if item.stop > len(data):
                    raise short_read(self.path, item, max(0, len(data) - item.start))
                buffer.cast("B")[:] = data[item.start : item.stop]

        self._client.call("read part", self.path, read)

    def remove(self) -> None:
        self._client.call("remove", self.path, lambda: self._client._server.end(self._upload))
