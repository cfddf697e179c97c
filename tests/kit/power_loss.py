"""Records a writer's changes of a disk, and models the possible states after a power loss.

Calls are recorded at the system's boundary: `os.open`, `os.write`, … and `Path.replace`, … below
one folder. The modelled disk has the guarantees of POSIX only: a file's bytes are safe after a sync
of the file, its name after a sync of its folder. Any subset of all other changes may survive a
power loss.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias
from unittest import mock

from tests.kit.datasets import keys_of

State: TypeAlias = "dict[str, bytes | None]"
"""Contents of files, and `None` for folders, by path."""

Choice: TypeAlias = Literal["none", "all", "some"]
"""Which of the unsafe calls survive."""


@dataclass(frozen=True)
class Call:
    """A call that changes the disk or makes a change safe; or a `mark` of a test."""

    kind: str  # create, write, cut, sync, rename, remove, folder, sync folder, or mark
    path: str
    target: str = ""
    offset: int = 0
    data: bytes = b""


@dataclass
class Record:
    """The calls on paths below `top`, in order."""

    top: Path
    calls: list[Call] = field(default_factory=list)

    def mark(self, text: str) -> None:
        """Mark the time from which on the writer guarantees something."""
        self.calls.append(Call("mark", text))

    @contextmanager
    def recording(self) -> Iterator[Record]:
        """Record the calls of this process."""
        real_open, real_write, real_fsync = os.open, os.write, os.fsync
        real_cut, real_mkdir = os.ftruncate, Path.mkdir

        def opening(path: Any, flags: int, *args: Any, **options: Any) -> int:
            new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            fd = real_open(path, flags, *args, **options)
            if new:
                self._add("create", path)
            return fd

        def writing(fd: int, data: Any) -> int:
            count = real_write(fd, data)
            if self._path_of(fd):
                offset = os.lseek(fd, 0, os.SEEK_CUR) - count
                self._add_at(fd, "write", offset, bytes(memoryview(data)[:count]))
            return count

        def syncing(fd: int) -> None:
            real_fsync(fd)
            is_folder = Path(f"/proc/self/fd/{fd}").is_dir()
            self._add_at(fd, "sync folder" if is_folder else "sync")

        def cutting(fd: int, size: int) -> None:
            real_cut(fd, size)
            self._add_at(fd, "cut", size)

        def folder(path: Path, *args: Any, **options: Any) -> None:
            new = not path.exists()
            real_mkdir(path, *args, **options)
            if new:
                self._add("folder", path)

        def recorded(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def do(path: Path, *args: Any, **options: Any) -> Any:
                existed = os.path.lexists(path)
                result = real(path, *args, **options)
                if existed:
                    self._add(kind, path, *args)
                return result

            return do

        removing, renaming = recorded("remove", Path.unlink), recorded("rename", Path.replace)
        without_folder = recorded("remove", Path.rmdir)
        with (
            mock.patch.multiple(os, open=opening, write=writing, fsync=syncing, ftruncate=cutting),
            mock.patch.multiple(Path, replace=renaming, unlink=removing, rmdir=without_folder),
            mock.patch.object(Path, "mkdir", folder),
        ):
            yield self

    def _add(self, kind: Any, path: Any, target: Any = None) -> None:
        inside = self._inside(Path(path))
        if inside is not None:
            other = "" if target is None else self._inside(Path(target))
            assert other is not None
            self.calls.append(Call(kind, inside, other))

    def _add_at(self, fd: int, kind: Any, offset: int = 0, data: bytes = b"") -> None:
        if (path := self._path_of(fd)) is not None:
            self.calls.append(Call(kind, path, offset=offset, data=data))

    def _path_of(self, fd: int) -> str | None:
        return self._inside(Path(f"/proc/self/fd/{fd}").readlink())

    def _inside(self, path: Path) -> str | None:
        if path != self.top and self.top not in path.parents:
            return None
        return path.relative_to(self.top).as_posix()


@dataclass(eq=False)
class _File:
    safe: bytearray = field(default_factory=bytearray)
    pending: list[Call] = field(default_factory=list)

    def after(self, chosen: list[Call]) -> bytes:
        data = bytearray(self.safe)
        for call in chosen:
            if call.kind == "cut":
                data = data[: call.offset] + bytes(max(0, call.offset - len(data)))
            else:
                data += bytes(max(0, call.offset - len(data)))  # a hole
                data[call.offset : call.offset + len(call.data)] = call.data
        return bytes(data)


@dataclass(eq=False)
class _Folder:
    """Safe names, and unsafe changes of names: (name, its new entry)."""

    safe: dict[str, _File | _Folder] = field(default_factory=dict)
    pending: list[list[tuple[str, _File | _Folder | None]]] = field(default_factory=list)

    def after(self, chosen: list[Any]) -> dict[str, _File | _Folder]:
        names = dict(self.safe)
        for changes in chosen:
            for name, entry in changes:
                if entry is None:
                    names.pop(name, None)
                else:
                    names[name] = entry
        return names


class Disk:
    """A disk after some calls. `top` is an empty, safe folder."""

    def __init__(self) -> None:
        self._top = _Folder()

    def apply(self, call: Call) -> None:
        """Apply the next call."""
        if call.kind == "mark":
            return
        if call.kind in ("create", "folder"):
            new = _File() if call.kind == "create" else _Folder()
            self._parent(call.path).pending.append([(_name(call.path), new)])
        elif call.kind == "remove":
            self._parent(call.path).pending.append([(_name(call.path), None)])
        elif call.kind == "rename":
            parent, other = self._parent(call.path), self._parent(call.target)
            old_name: Any = (_name(call.path), None)
            new_name = (_name(call.target), self._find(call.path))
            if parent is other:
                parent.pending.append([old_name, new_name])  # a rename is atomic
            else:
                parent.pending.append([old_name])
                other.pending.append([new_name])
        elif call.kind == "sync folder":
            folder = self._find(call.path)
            assert isinstance(folder, _Folder)
            folder.safe, folder.pending = folder.after(folder.pending), []
        else:
            file = self._find(call.path)
            assert isinstance(file, _File)
            if call.kind == "sync":
                file.safe, file.pending = bytearray(file.after(file.pending)), []
            else:
                file.pending.append(call)

    @staticmethod
    def losses(calls: list[Call], *, repeats: int = 1) -> Iterator[tuple[int, State]]:
        """After each number of calls from 0: the states that a power loss may leave."""
        disk, choices = Disk(), list[Choice](("none", "all", "some"))
        for number in range(len(calls) + 1):
            rng = random.Random(number)
            for contents, names in itertools.product(choices, choices * repeats):
                yield number, disk.after_loss(contents, names, rng)
            if number < len(calls):
                disk.apply(calls[number])

    def after_loss(self, contents: Choice, names: Choice, rng: random.Random) -> State:
        """A state of the disk after a power loss."""
        pick = {"none": lambda _: [], "all": list, "some": lambda calls: _subset(calls, rng)}
        return _state(self._top, "", pick[contents], pick[names])

    def _find(self, path: str) -> _File | _Folder:
        found: _File | _Folder = self._top
        for name in Path(path).parts:
            assert isinstance(found, _Folder)
            found = found.after(found.pending)[name]
        return found

    def _parent(self, path: str) -> _Folder:
        parent = self._find(Path(path).parent.as_posix())
        assert isinstance(parent, _Folder)
        return parent


def _name(path: str) -> str:
    return Path(path).name


def _subset(calls: list[Any], rng: random.Random) -> list[Any]:
    return [call for call in calls if rng.random() < 0.5]


def _state(
    folder: _Folder, prefix: str, contents: Callable[[Any], Any], names: Callable[[Any], Any]
) -> State:
    state: State = {}
    for name, entry in sorted(folder.after(names(folder.pending)).items()):
        path = f"{prefix}{name}"
        if isinstance(entry, _File):
            state[path] = entry.after(contents(entry.pending))
        else:
            state[path] = None
            state |= _state(entry, f"{path}/", contents, names)
    return state


def write_state(state: State, folder: Path) -> None:
    """Make `folder` contain exactly this state."""
    folder.mkdir()
    for path, data in state.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def _marked_losses(calls: list[Call]) -> Iterator[tuple[int, State, str, str]]:
    """Every cut of the record, with each possible state after a power loss, without duplicates.

    Also yields the keys of the last committed dataset and of the next one.
    """
    marks = [(number, call.path) for number, call in enumerate(calls) if call.kind == "mark"]
    seen = set[Any]()
    for number, state in Disk.losses(calls):
        before = [keys for at, keys in marks if at < number]
        after = [keys for at, keys in marks if at >= number]
        last, following = (before or [""])[-1], (after or before)[0 if after else -1]
        key = (last, following, *sorted(state.items(), key=lambda item: item[0]))
        if key not in seen:
            seen.add(key)
            yield number, state, last, following


def first_invalid(
    calls: list[Call],
    dataset: str,
    folder: Path,
    each: Callable[[Path, str], None] = lambda _path, _keys: None,
    step: int = 1,
) -> str:
    """Describe the first loss that leaves neither the last committed dataset nor the next one.

    Makes each state in `folder` and calls `each` with the dataset's path and keys. Marks are the
    keys of committed datasets, one letter each. Tries every `step`-th loss.
    """
    count = 0
    for number, state, last, following in itertools.islice(_marked_losses(calls), 0, None, step):
        write_state(state, folder)
        try:
            keys = keys_of(folder / dataset, verify=False)
        except Exception as error:
            keys = repr(error)
        if keys not in (last, following):
            shutil.rmtree(folder)
            return f"cut {number} of {len(calls)}: {keys!r}, not {last!r} or {following!r}"
        each(folder / dataset, keys)
        shutil.rmtree(folder)
        count += 1
    assert count > 200 // step
    return ""
