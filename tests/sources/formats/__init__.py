"""Cases of every source format, one module per format.

A module defines `CASES`, by name. It is found without being listed anywhere.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.sources.cases import Case

__all__ = ["CASES"]

CASES: dict[str, Case] = {
    name: case
    for module in pkgutil.iter_modules(__path__, f"{__name__}.")
    for name, case in import_module(module.name).CASES.items()
}
