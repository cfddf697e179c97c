"""What `frame_transform` may give, and errors that tell where they happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from seqrecord import ClipError
from seqrecord.frames import ArraySpec, add_place, apply_transform, check_arrays


def test_array_spec() -> None:
    spec = ArraySpec(np.dtype("<f4"), (None, 3))
    assert (spec.nbytes, spec.is_fixed, str(spec)) == (12, False, "float32 [?, 3]")
    assert ArraySpec(np.dtype("u1"), ()).nbytes == 1


def test_arrays_of_any_kind_are_taken() -> None:
    made = apply_transform(lambda frame: {"x": frame["x"] + 1, "y": 2.5}, {"x": np.arange(2)})
    assert {name: a.tolist() for name, a in made.items()} == {"x": [1, 2], "y": 2.5}


@pytest.mark.parametrize("result", [None, {}, [1, 2], np.zeros(3), {1: np.zeros(3)}])
def test_not_a_frame(result: Any) -> None:
    with pytest.raises(ClipError, match="does not give arrays by name"):
        apply_transform(lambda _: result, {})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({}, "other features"),
        ({"x": np.zeros(2), "y": np.zeros(2)}, "other features"),
        ({"x": np.zeros(3)}, "another dtype or shape"),
        ({"x": np.zeros(2, "f4")}, "another dtype or shape"),
    ],
)
def test_frames_are_alike(made: dict[str, Any], message: str) -> None:
    with pytest.raises(ClipError, match=message):
        check_arrays(made, {"x": ArraySpec(np.dtype("f8"), (2,))})


def test_place_of_our_own_errors_is_in_the_message() -> None:
    error = ClipError("no")
    add_place(error, "frame_transform", file="r.seqrec", episode="a/b", frame=3)
    assert str(error) == "no; file: r.seqrec; episode: a/b; frame: 3"


def test_place_of_other_errors_is_added() -> None:
    error = ZeroDivisionError("division by zero")
    add_place(error, "frame_transform", file="r.seqrec", episode="a/b", frame=3)
    told = " ".join([str(error), *getattr(error, "__notes__", [])])
    assert "in frame_transform of episode a/b, frame 3, r.seqrec" in told
