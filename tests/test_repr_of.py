"""A value in a message: the start of its `repr`, whatever it is."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipError
from seqrecord.text import repr_of

_PLAIN: Any = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.binary(),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner),
        st.tuples(inner, inner),
        st.dictionaries(st.integers(), inner),
        st.sets(st.integers()),
    ),
)


@given(value=_PLAIN, limit=st.sampled_from([1, 20, 200]))
def test_it_is_the_start_of_the_repr(value: object, limit: int) -> None:
    assert len(repr_of(value, limit)) <= limit
    whole = repr_of(value, 100_000)
    assert whole == repr(value)
    if len(whole) <= limit:
        assert repr_of(value, limit) == whole


def test_little_of_a_large_value_is_looked_at() -> None:
    deep: list[Any] = [0] * 100
    for _ in range(30):
        deep = [deep] * 100
    itself: list[Any] = []
    itself.append(itself)
    large = [
        deep,
        itself,
        list(range(1 << 20)),
        {"episode": list(range(1 << 20))},
        dict.fromkeys(range(1 << 20)),
        "x" * (1 << 22),
        b"\0" * (1 << 22),
    ]
    tracemalloc.start()
    try:
        texts = [repr_of(value) for value in large]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert {len(text) for text in texts} == {200}


class _Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error


class _Returns:
    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]


class _Surrogate:
    def __repr__(self) -> str:
        return "\udc80"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (_Raises(KeyError("x")), "<_Raises>"),
        (_Raises(RecursionError()), "<_Raises>"),
        (_Raises(MemoryError()), "<_Raises>"),
        (_Returns(), "<_Returns>"),
        ([_Returns(), 1], "[<_Returns>, 1]"),
        (_Surrogate(), "\\udc80"),
        ("a\udc80", "'a\\udc80'"),
        (10**5000, "an integer of 16,610 bits"),
        (-(10**5000), "an integer of 16,610 bits"),
        ({"a": 10**5000}, "{'a': an integer of 16,610 bits}"),
        (np.float64("nan"), repr(np.float64("nan"))),
        (type("list", (), {"__repr__": lambda _: "mine"})(), "mine"),
    ],
    ids=[
        "KeyError",
        "RecursionError",
        "MemoryError",
        "no text",
        "inside",
        "surrogate",
        "text",
        "integer",
        "negative",
        "in a dict",
        "nan",
        "name of a list",
    ],
)
def test_a_value_without_a_plain_repr(value: object, text: str) -> None:
    assert repr_of(value) == text


def test_an_error_is_printed_whatever_it_holds() -> None:
    error = ClipError("wrong", expected=-(10**5000), got=_Raises(KeyError("x")))
    assert str(error) == "wrong; expected: an integer of 16,610 bits; got: <_Raises>"
