"""Temporary files that are used again: while somebody holds them, and never for two at a time."""

from __future__ import annotations

import gc
import os
from typing import IO

from seqrecord.storage.spooled import Hold, SpareFiles


def number(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_ino


def test_a_file_is_used_again_from_its_start() -> None:
    spare = SpareFiles()
    hold = Hold(spare)
    first = spare.take()
    first.write(b"first upload")
    inode = number(first)
    spare.give_back(first)
    second = spare.take()
    assert number(second) == inode
    second.write(b"second")
    second.seek(0)
    assert second.read(6) == b"second"
    other = spare.take()
    assert number(other) != inode, "it is in use"
    spare.give_back(second)
    spare.give_back(other)
    before = [second.closed, other.closed]
    hold.release()
    assert [*before, second.closed, other.closed] == [False, False, True, True]


def test_without_a_hold_files_are_closed() -> None:
    spare = SpareFiles()
    one, two = Hold(spare), Hold(spare)
    file = spare.take()
    one.release()
    one.release()  # once more changes nothing
    spare.give_back(file)
    open_before = [not file.closed]
    del two
    gc.collect()
    assert [*open_before, not file.closed] == [True, False]
    file = spare.take()
    spare.give_back(file)
    assert file.closed


def test_no_more_than_two_are_kept() -> None:
    spare = SpareFiles()
    hold = Hold(spare)
    files = [spare.take() for _ in range(4)]
    for file in files:
        spare.give_back(file)
    assert [file.closed for file in files] == [False, False, True, True]
    hold.release()
    assert all(file.closed for file in files)
