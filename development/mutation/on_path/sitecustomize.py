"""Python imports this at startup if its folder is on PYTHONPATH; see `instrumenting`."""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class Loader(SourceFileLoader):
    """Loads the instrumented code of a module."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = marshal.loads((Path(CODE) / fullname).read_bytes())
        return code


class Finder(MetaPathFinder):
    """Finds the package's modules at their usual place, to be loaded by `Loader`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "seqrecord":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and (Path(CODE) / name).exists():
            spec.loader = Loader(name, spec.origin)
        return spec


CODE = os.environ.get("MUTATION_CODE", "")
if CODE:
    sys.meta_path.insert(0, Finder())
