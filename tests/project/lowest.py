"""Writes the lowest versions that pyproject.toml allows as files for pip; `make lowest`.

pip always selects the highest version that fits. So this writes into a folder the packages to
install, with a constraint `name==floor` for each `name>=floor` of the package and its extras. All
others, torch included, are pinned as in constraints.txt:

    all.txt     the package, its extras and the tools of its tests
    apart.txt   extras that need a later version of such a package, with it
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import tomllib  # type: ignore[import-not-found, unused-ignore] # of Python 3.11
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
APART = ("rerun", "zarr")
"""Extras that need a later numpy, pyarrow or numcodecs than the package."""

_NOT_OURS = ("bench", "dev", "docs")
_NOT_LOWEST = ("torch",)  # old builds are gigabytes
_TOO_NEW = ("jax", "moto", "mypy", "ruff", "s3fs", "types-psutil", "types-pyyaml", "types-tqdm")
"""Packages of `dev` that conflict with a lowest version or are unused; tests skip without them."""
_FREE = ("aiobotocore", "botocore", "dask", "s3transfer")
"""Pinned in constraints.txt for a newer version of another package."""


def write_lowest(folder: Path) -> None:
    """Write `all.txt` and `apart.txt` with their constraints files into `folder`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: _read(lines) for name, lines in project["optional-dependencies"].items()}
    of_package, of_tests = _read(project["dependencies"]), extras["dev"]
    ours = [name for name in extras if name not in (*_NOT_OURS, *APART)]
    apart = [each for name in APART for each in extras[name]]

    lowest = floors([*of_package, *(each for name in ours for each in extras[name])])
    excluded = {*_TOO_NEW, *floors(apart)} - set(floors(of_package))
    tools = [each.name for each in of_tests if canonicalize_name(each.name) not in excluded]
    _write(folder / "all.txt", [f"-e {ROOT}[{','.join(ours)}]", *tools], lowest)
    # Lists only the packages to be replaced in the environment of all.txt.
    _write(folder / "apart.txt", list(floors(apart)), lowest | floors(apart))


def floors(requirements: Iterable[Requirement]) -> dict[str, str]:
    """Lowest version of each package that these requirements allow."""
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
    constraints_file = path.with_suffix(".constraints")
    constraints_file.write_text("\n".join([*constraints, ""]))
    path.write_text("\n".join([f"-c {constraints_file.name}", *wanted, ""]))


if __name__ == "__main__":
    write_lowest(Path(sys.argv[1]))
