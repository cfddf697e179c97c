"""Files of decoded frames in the folder of a frame cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"[0-9a-f]{16}-[0-9a-f]{24}")


def frame_files(cache: Path) -> list[Path]:
    """The files, by name."""
    return sorted(file for file in cache.glob("*/*") if _NAME.fullmatch(file.name))


def used_bytes(cache: Path) -> int:
    """Bytes of the blocks of all files and folders."""
    paths = [cache, *cache.rglob("*")]
    return sum({os.lstat(path).st_ino: os.lstat(path).st_blocks * 512 for path in paths}.values())


def slots_start(file: Path) -> int:
    """Where the slots of a file begin."""
    head = file.read_bytes()[:36]
    slot_bytes, num_slots = (int.from_bytes(head[i : i + 8], "little") for i in (8, 16))
    return file.stat().st_size - slot_bytes * num_slots


def damage(file: Path, at: int, value: int = 1) -> None:
    """Change a byte in place, as a disk does."""
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ value]))
