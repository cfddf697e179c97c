"""No module reads a private name of another one, and tests read and patch none of the package."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.project.private_names import found_in, own_names, private_in
from tests.project.source_code import parse

TESTS = Path(__file__).parents[1]
FILES = sorted(path for path in TESTS.rglob("*.py") if "node_modules" not in path.parts)

EXAMPLES: dict[str, set[str]] = {
    "import os; os._exit(0)": set(),
    "from seqrecord.a import _b": {"_b"},
    "pipe._epochs.loader": {"_epochs"},
    "class A:\n  def f(self, other): self._x = 1; return other._x": set(),
    "getattr(storage, '_state')": {"_state"},
    "from seqrecord.a import b\nm.setattr(b, 'SIZE', 3)": {"a patch of b.SIZE"},
    "import seqrecord.a\nm.setattr(seqrecord.a, 'c', 3)": {"a patch of seqrecord.a.c"},
    "m.setattr('seqrecord.a._B', 3)": {"_B", "a patch of seqrecord.a._B.seqrecord"},
    "import os\nm.setattr(os, 'fsync', 3)": set(),
}


def test_no_private_name_is_read_and_nothing_is_patched() -> None:
    for code, expected in EXAMPLES.items():
        assert set(found_in(ast.parse(code))) == expected
    for path in FILES:
        assert set(found_in(parse(path))) == set(), path


PACKAGE = sorted((TESTS.parent / "seqrecord").rglob("*.py"))
ALLOWED = {
    "_replace",  # named tuples
    "_exit",  # os
    "_strip_protocol",  # fsspec: methods of its file systems
    "_get_kwargs_from_urls",
    "_decode_single",  # zarr: a method of its codecs
}


PRIVATE: dict[str, set[str]] = {
    "import torch\ntorch.nn.x(1)": set(),
    "import torch\ntorch._C.x": {"_C"},
    "from torch.utils.data import get as g\ng()._mine": {"_mine"},
    "from multiprocessing import current_process\ncurrent_process()._args": {"_args"},
    "queue._writer.fileno()": {"_writer"},
    "other._mine": set(),
    "getattr(process, '_args', ())": {"_args"},
    "import sys\nsys.modules.get('jax._src.distributed')": {"_src"},
    "from jax._src import distributed": {"_src"},
    "from seqrecord.a import _b": {"_b"},
    "from seqrecord.a import B\nB._mine": {"_mine"},
}


def test_no_module_reads_a_private_name_of_another_one() -> None:
    for code, expected in PRIVATE.items():
        assert set(private_in(ast.parse(code), {"_mine"})) == expected, code
    trees = {path: parse(path) for path in PACKAGE}
    found = {
        (path.name, name)
        for path, tree in trees.items()
        for name in private_in(tree, {*own_names(tree)})
    }
    assert {one for one in found if one[1] not in ALLOWED} == set()
    assert {name for _, name in found} >= ALLOWED
