"""Places on a local disk that cannot be written to, or that hold what they should not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord.errors import DestinationError, StorageError
from tests.numbered import add, lengths_of

MODES = ["create", "append", "resume"]


def write(folder: Path, mode: Any = "create", key: str = "a") -> None:
    with seqrecord.SeqRecordWriter(folder, mode=mode) as writer:
        add(writer, {key: 3})


def keys(folder: Path) -> list[str]:
    return list(lengths_of(folder))


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("below", ["", "set"])
def test_a_folder_that_is_a_file(tmp_path: Path, mode: str, below: str) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(StorageError, match=r"Not a directory; file: .*file"):
        write(tmp_path / "file" / below, mode)
    why = "Not a directory" if below else "it is a file, and a dataset is a folder"
    with pytest.raises(StorageError, match=rf"{why}; file: .*file"):
        seqrecord.open(tmp_path / "file" / below)
    assert tree(tmp_path) == ["file"]


@pytest.mark.parametrize("mode", MODES)
def test_a_manifest_that_is_a_folder(tmp_path: Path, mode: str) -> None:
    (tmp_path / "manifest.json").mkdir()
    for action in (lambda: write(tmp_path, mode), lambda: seqrecord.open(tmp_path)):
        with pytest.raises(StorageError, match=r"not a regular file; file: .*manifest\.json"):
            action()
    assert tree(tmp_path) == ["manifest.json"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["manifest.json", "records", "index"])
def test_a_link_that_leads_out(tmp_path: Path, mode: str, name: str) -> None:
    write(tmp_path / "other")
    before = tree(tmp_path / "other")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).symlink_to(tmp_path / "other" / name)
    # A writer reads the manifest first: without one, nothing else is looked at to append.
    why = "no dataset to append to" if (name, mode) == ("index", "append") else "leads out"
    with pytest.raises(StorageError, match=why):
        write(tmp_path / "set", mode)
    assert tree(tmp_path / "other") == before
    assert keys(tmp_path / "other") == ["a"]


@pytest.mark.parametrize("mode", ["create", "resume"])
def test_a_folder_of_records_that_is_a_file(tmp_path: Path, mode: str) -> None:
    (tmp_path / "records").write_bytes(b"")
    with pytest.raises(StorageError, match=r"Not a directory; file: .*records"):
        write(tmp_path, mode)
    assert tree(tmp_path) == ["records"]


def isolated(mount: str, script: str, folder: Path) -> Any:
    """What a script prints that runs with a file system of its own in a folder."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no mounts can be made here: run as root, with unshare of util-linux")
    head = "import json, os, sys; from pathlib import Path; folder = Path(sys.argv[1])\n"
    head += "from tests.test_bad_destinations import *\n"
    command = f'{mount} || exit 77; exec "$0" -c "$2" "$1"'
    ran = subprocess.run(
        [unshare, "-m", "sh", "-c", command, sys.executable, str(folder), head + script],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode in (1, 77) and "Traceback" not in ran.stderr:
        pytest.skip("no mounts can be made here: run as root, with unshare of util-linux")
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def failure(action: Any) -> list[str]:
    """The kind and the text of the error that an action ends with."""
    try:
        action()
    except seqrecord.SeqRecordError as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


_READ_ONLY = """
from functools import partial
print(json.dumps([
    *(failure(partial(write, folder, mode, "b")) for mode in ("append", "resume")),
    failure(partial(write, folder / "new")),
    failure(partial(seqrecord.reindex, folder)),
    [str(keys(folder)), ""],
]))
"""


def test_a_read_only_folder(tmp_path: Path) -> None:
    write(tmp_path)
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
    *errors, (read, _) = isolated(mount, _READ_ONLY, tmp_path)
    for kind, text in errors:
        assert kind == "DestinationError"
        assert "it cannot be written: Read-only file system; file: " in text
    assert read == "['a']"


_FULL = """
write(folder)
writer = seqrecord.SeqRecordWriter(folder, mode="append")
add(writer, {"b": 1})
with (folder / "fill").open("wb", buffering=0) as fill:
    while True:
        try:
            fill.write(bytes(4096))
        except OSError:
            break
seen = [failure(writer.close), keys(folder)]
os.unlink(folder / "fill")
seqrecord.SeqRecordWriter(folder, mode="resume").close()
print(json.dumps([*seen, keys(folder)]))
"""


def test_a_full_disk(tmp_path: Path) -> None:
    """What was committed stays, and what had ended is brought in when there is room again."""
    mount = 'mount -t tmpfs -o size=256k tmpfs "$1"'
    (kind, text), during, after = isolated(mount, _FULL, tmp_path)
    assert kind == "StorageError"
    assert "No space left on device; file: " in text
    assert during == ["a"]
    assert after == ["a", "b"]


def test_a_disk_that_is_full_at_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    real = os.write

    def full(fd: int, data: Any) -> int:
        if ".manifest.json." in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(28, os.strerror(28))
        return real(fd, data)

    writer = seqrecord.SeqRecordWriter(tmp_path, mode="append")
    add(writer, {"b": 1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match=r"No space left on device; file: .*manifest\.json"):
            writer.close()
    assert keys(tmp_path) == ["a"]
    seqrecord.SeqRecordWriter(tmp_path, mode="resume").close()
    assert keys(tmp_path) == ["a", "b"]


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As whoever is not root finds it."""
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(13, os.strerror(13), path)
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DestinationError, match="it cannot be written: Permission denied; file: "):
        write(tmp_path)
