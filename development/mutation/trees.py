"""Copies of the project, so that edits during a run have no effect on it."""

from __future__ import annotations

import compileall
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from py_compile import PycInvalidationMode

__all__ = ["copy_tree", "digest", "project_files", "restore"]


def project_files(root: Path) -> list[str]:
    """Files tracked by git, and new ones that it does not ignore; sorted paths."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split("\0") if name}
    return sorted(name for name in names if (root / name).is_file())


def digest(root: Path, files: Sequence[str], tests: Sequence[str]) -> str:
    """A short hash of code and tests, without development tools, and of the selected tests."""
    value = hashlib.sha256("\n".join(tests).encode())
    for name in files:
        if name.endswith((".py", ".toml")) and not name.startswith("development/"):
            data = (root / name).read_bytes()
            value.update(f"{name}\n{len(data)}\n".encode() + data)
    return value.hexdigest()[:12]


def copy_tree(root: Path, files: Sequence[str], to: Path) -> None:
    """Copy files and compile the package, so that later only changed modules are compiled."""
    for name in files:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name)
    compileall.compile_dir(
        to / "seqrecord", quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH
    )


def restore(source: Path, tree: Path) -> None:
    """Undo the change of an interrupted run in a copy."""
    for path in (source / "seqrecord").rglob("*.py"):
        data, copy = path.read_bytes(), tree / path.relative_to(source)
        if copy.read_bytes() != data:
            copy.write_bytes(data)
