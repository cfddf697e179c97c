"""Temporary files that are used again: while somebody holds them, and never for two at a time."""

from __future__ import annotations

import gc
import os
from typing import IO

from seqrecord.storage.spooled import FilePool, Hold


def number(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_ino


def test_a_file_is_used_again_from_its_start() -> None:
    pool = FilePool()
    hold = Hold(pool)
    first = pool.take()
    first.write(b"first upload")
    inode = number(first)
    pool.give_back(first)
    second = pool.take()
    assert number(second) == inode
    second.write(b"second")
    second.seek(0)
    assert second.read(6) == b"second"
    other = pool.take()
    assert number(other) != inode, "it is in use"
    pool.give_back(second)
    pool.give_back(other)
    before = [second.closed, other.closed]
    hold.release()
    assert [*before, second.closed, other.closed] == [False, False, True, True]


def test_without_a_hold_files_are_closed() -> None:
    pool = FilePool()
    one, two = Hold(pool), Hold(pool)
    file = pool.take()
    one.release()
    one.release()  # once more changes nothing
    pool.give_back(file)
    open_before = [not file.closed]
    del two
    gc.collect()
    assert [*open_before, not file.closed] == [True, False]
    file = pool.take()
    pool.give_back(file)
    assert file.closed


def test_no_more_than_two_are_kept() -> None:
    pool = FilePool()
    hold = Hold(pool)
    files = [pool.take() for _ in range(4)]
    for file in files:
        pool.give_back(file)
    assert [file.closed for file in files] == [False, False, True, True]
    hold.release()
    assert all(file.closed for file in files)
