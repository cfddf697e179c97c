"""Names are nouns of the thing: few are pronouns, determiners or bare participles."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.project.source_code import PACKAGE, parse

LIMIT = 15.0
"""Names without a noun among 1,000 bound names and attributes."""

_PRONOUNS = "some each one own most every other others same more least rest mine"
_PARTICIPLES = (
    "found given made asked wanted known taken kept left held chosen done missing named drawn "
    "stored begun"
)
_ADVERBS = "there inside before after now first last wrong"
WITHOUT_NOUN = frozenset(f"{_PRONOUNS} {_PARTICIPLES} {_ADVERBS}".split())


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Parameters, and variables and attributes that are assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_few_names_lack_a_noun() -> None:
    names = Counter(
        name.lstrip("_") for path in PACKAGE.rglob("*.py") for name in bound_names(parse(path))
    )
    without = Counter({name: names[name] for name in WITHOUT_NOUN})
    assert 1000 * without.total() / names.total() <= LIMIT, without.most_common(10)
    assert names.total() > 10_000


def test_names_of_an_example() -> None:
    code = "def f(found, *, size):\n    self._kept = [one for one in found]\n    del size\n"
    names = [*bound_names(ast.parse(code))]
    assert sorted(names) == ["_kept", "found", "one", "size"]
