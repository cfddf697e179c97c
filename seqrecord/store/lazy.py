"""Imports at first use, for slow modules and optional packages."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from typing import Any

from seqrecord.errors import MissingPackageError

_IMPORT = re.compile(r"^    from ([\w.]+) import (\w+) as \2\b", re.MULTILINE)


def lazy(
    package: str,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a module, https://peps.python.org/pep-0562.

    Parses the module's source: each line `from module import name as name` under `if
    TYPE_CHECKING:` imports `name` at its first use. A package's submodules are attributes too.
    `__dir__` returns `__all__`, the sorted names.

    Raises `ImportError` without the source. An application must therefore include the `.py` files,
    as torch requires too.
    """
    loader: Any = sys.modules[package].__loader__
    if (source := loader.get_source(package)) is None:
        raise ImportError(f"{package} needs its .py files; include them in the application")
    module_of = {name: module for module, name in _IMPORT.findall(source)}
    names = sorted(module_of)

    def getattr_lazily(name: str) -> Any:
        if (module := module_of.get(name, package)) != package:
            return getattr(import_part(module), name)
        if not name.startswith("_") and is_installed(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_lazily, lambda: list(names), names


def import_part(module: str) -> Any:
    """Import a module from a part that a copy of this package may lack.

    Raises `MissingPackageError`, naming the part, if the module's part or another one is missing.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (part := missing_part(error)) is None:
            raise
        raise MissingPackageError(lack_of(part), file=f"seqrecord/{part}") from error


def missing_part(error: ModuleNotFoundError) -> str | None:
    """The part whose module was not found; `None` if it is no part's."""
    package, _, submodule = (error.name or "").partition(".")
    part = submodule.partition(".")[0]
    if package != "seqrecord" or not part or is_installed(f"seqrecord.{part}"):
        return None
    return part


def lack_of(part: str) -> str:
    """The message of the error without a part."""
    return f"this seqrecord lacks its part `{part}`; pip install --force-reinstall seqrecord-torch"


def import_extra(module: str, message: str, file: str | None = None) -> Any:
    """Import an optional module; without it raise `MissingPackageError` with this message."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # installed, but a dependency of it is missing
        raise MissingPackageError(message, file=file) from error


def is_installed(package: str) -> bool:
    """Whether a module, or a distribution such as `azure-storage-blob`, can be imported."""
    try:
        return importlib.util.find_spec(package.replace("-", ".")) is not None
    except (ImportError, ValueError):  # no parent package, or a broken one
        return False
