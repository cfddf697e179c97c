"""The lowest versions that pyproject.toml allows, written as files that pip takes; `make lowest`.

pip always takes the highest version that fits. So this writes, into a folder, what to install and
a constraint `name==floor` for all that the package and its extras say `name>=floor` of. The rest,
torch included, is as constraints.txt has it:

    all.txt     the package, its extras and the tools of its tests
    apart.txt   extras whose own lowest version excludes one of those, with what it needs instead
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import tomllib  # type: ignore[import-not-found, unused-ignore] # of Python 3.11
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["floors", "write_lowest"]

ROOT = Path(__file__).parents[1]
APART = ("rerun", "zarr")
"""Extras that ask for a later numpy, pyarrow or numcodecs than the package does."""

_NOT_OURS = ("bench", "dev", "docs")
_NOT_LOWEST = ("torch",)  # old builds are gigabytes
_TOO_NEW = ("moto", "mypy", "ruff", "s3fs", "types-psutil", "types-pyyaml", "types-tqdm")
"""Of `dev`: those that exclude a lowest version, and those of no test; tests skip these."""
_FREE = ("aiobotocore", "botocore", "dask", "s3transfer")
"""Pinned in constraints.txt to what goes with a newer version of another."""


def write_lowest(folder: Path) -> None:
    """Write `all.txt` and `apart.txt`, each with its constraints beside it, into `folder`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: _read(lines) for name, lines in project["optional-dependencies"].items()}
    of_package, of_tests = _read(project["dependencies"]), extras["dev"]
    ours = [name for name in extras if name not in (*_NOT_OURS, *APART)]
    apart = [each for name in APART for each in extras[name]]

    lowest = floors([*of_package, *(each for name in ours for each in extras[name])])
    left_out = {*_TOO_NEW, *floors(apart)} - set(floors(of_package))
    tools = [each.name for each in of_tests if canonicalize_name(each.name) not in left_out]
    _write(folder / "all.txt", [f"-e {ROOT}[{','.join(ours)}]", *tools], lowest)
    # Only what differs is installed, over the others; so all of it is named.
    _write(folder / "apart.txt", list(floors(apart)), lowest | floors(apart))


def floors(requirements: Iterable[Requirement]) -> dict[str, str]:
    """The lowest version of each package that these requirements allow."""
    found: dict[str, str] = {}
    for each in requirements:
        versions = [item.version for item in each.specifier if item.operator == ">="]
        if versions and each.name not in _NOT_LOWEST:
            found[canonicalize_name(each.name)] = versions[0]
    return found


def _read(lines: Iterable[str]) -> list[Requirement]:
    return list(map(Requirement, lines))


def _write(path: Path, wanted: Iterable[str], lowest: dict[str, str]) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = _read(line for line in lines if not line.startswith("#"))
    others = [each for each in pinned if canonicalize_name(each.name) not in {*lowest, *_FREE}]
    constraints = [*map(str, others), *(f"{name}=={at}" for name, at in lowest.items())]
    beside = path.with_suffix(".constraints")
    beside.write_text("\n".join([*constraints, ""]))
    path.write_text("\n".join([f"-c {beside.name}", *wanted, ""]))


if __name__ == "__main__":
    write_lowest(Path(sys.argv[1]))
