"""Phrases in README, docs, docstrings, messages and tests are below limits per 1,000 words.

`tests.project.language` defines the phrases and limits, and prints the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.project.language import (
    EXAMPLES,
    LIMITS,
    MORE_LIMITS,
    allowed,
    code,
    count,
    docstrings,
    literals,
    pages,
    rates,
)

KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "docs": pages,
    "docstrings": docstrings,
    "messages": literals,
    "tests and benchmarks": code,
}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_keep_the_limits(kind: str) -> None:
    """Each text, and all texts of a kind together."""
    counted = {name: count(text) for name, text in KINDS[kind]().items()}
    total = sum(counted.values(), Counter[str]())
    found = rates(total)
    limits = {**LIMITS, **MORE_LIMITS.get(kind, {})}
    assert total["words"] > 1000
    assert {name: found[name] for name in limits if found[name] > limits[name]} == {}
    if kind == "docs":
        assert found["examples"] >= EXAMPLES
    beyond = {
        (name, phrase): found[phrase]
        for name, found in counted.items()
        for phrase in LIMITS
        if found[phrase] > allowed(phrase, found["words"])
    }
    assert beyond == {}, "`python -m tests.project.language PAGE` shows the lines"


def test_count_skips_code_tables_and_comments() -> None:
    found = count(
        "What it says\nholds for all\nthat lie. One of them, e.g. `what it holds`.\n"
        "The end of the row\nof a table stays; it stayed. A cup of tea.\n"
        "| what | those of |\n<!-- what -->\n[page](what.md)\n"
        "```python\nwhat = 1\n```\n```\nwhat\n```\n\n>>> what\n1\n"
    )
    words = {"words": 29, "what": 1, "say": 1, "those": 2, "lies": 2, "of": 1, "stays": 2}
    assert found == {**words, "examples": 3}
