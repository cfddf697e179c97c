"""FeatureSpec and Schema: valid values, JSON, equality."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from seqrecord import FeatureSpec, Schema
from seqrecord.errors import SchemaError
from seqrecord.store.schema import MAX_FRAME_BYTES, MAX_NAME_LENGTH

_U1 = np.dtype("u1")
_DTYPES = "|b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split()  # noqa: SIM905


def _spec(**changes: Any) -> FeatureSpec:
    return FeatureSpec(**{"name": "a", "dtype": _U1, "shape": (2,), **changes})


def test_every_dtype_has_one_spelling() -> None:
    for text in _DTYPES:
        dtype = np.dtype(text)
        for same in (dtype, dtype.newbyteorder(">"), np.dtype(text, metadata={"x": 1})):
            spec = _spec(dtype=same)
            assert spec.to_json()["dtype"] == text
            assert spec.dtype.metadata is None
            assert FeatureSpec.from_json(spec.to_json()) == spec
        assert _spec(dtype=dtype).nbytes == 2 * dtype.itemsize


_REFUSED: dict[str, Any] = {
    "dtype": ["O", "V8", "S4", "U4", "M8[s]", "m8", "g", "G", "i4,i4", "(2,)f4", "x"],
    "name": [
        *("", ".", ".a", "a.", "-a", "a-", "a/b", "../a", "a b", "a\n", "ä"),
        "x" * (MAX_NAME_LENGTH + 1),
    ],
    "shape": [
        *((0,), (-1,), (2**31,), (True,), (1.0,), ("2",), (1,) * 9, [2], (2**30 + 1,)),
        *((2**31 - 1,) * 8, (None, 2**30, 2)),
    ],
    "codec": [[{"id": "zstd"}], ({},), ({"id": 1},), ("zstd",), ({"id": "zstd"},) * 5],
    "group": [-1, 256, True, 1.0],
    "kind": ["", "Image", "a" * 33, 1],
    "unit": ["", "°", "m\n", "m" * 33],
    "value": ["str", None, []],
}


@pytest.mark.parametrize("field", _REFUSED)
def test_invalid_fields_are_refused(field: str) -> None:
    for value in _REFUSED[field]:
        with pytest.raises(SchemaError):
            _spec(**{field: value})
        if field not in ("shape", "codec"):  # lists in JSON
            with pytest.raises(SchemaError):
                FeatureSpec.from_json({**_spec().to_json(), field: value})
    for value in (None, [], {}, {"name": "a"}, 1, "a"):
        with pytest.raises(SchemaError):
            FeatureSpec.from_json(value)


def test_names_and_shapes() -> None:
    for name in ("a", "_", "0", "a.b-c_D", "a..b", "x" * MAX_NAME_LENGTH):
        assert _spec(name=name).name == name
    assert _spec(shape=()).nbytes == 1
    assert _spec(shape=(MAX_FRAME_BYTES,)).nbytes == MAX_FRAME_BYTES
    assert _spec(shape=(np.int64(3), None)).shape == (3, None)
    assert _spec(shape=(None, 4), dtype=np.dtype("<f4")).nbytes == 16
    assert not _spec(shape=(None,)).is_fixed
    spec = _spec(shape=(None, 3))
    shapes = ((1, 3), (9, 3), (3,), (1, 2), (1, 3, 1))
    assert [spec.accepts(shape) for shape in shapes] == [True, True, False, False, False]


def test_schema_round_trip_and_order() -> None:
    a, b = _spec(), _spec(name="b", codec=({"id": "zstd", "level": 1},))
    schema = Schema([a, b])
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    assert Schema([b, a]) != schema, "the order is that of the columns"
    assert hash(Schema([a, b])) == hash(schema)
    assert Schema([a, _spec(name="b")]) != schema
    assert [schema.position(name) for name in schema] == [0, 1]
    assert list(schema.select(["b"])) == ["b"]
    assert schema.select(None) is schema
    assert not schema.with_codecs({"b": ()})["b"].codec
    with pytest.raises(SchemaError, match="no such feature"):
        schema.select(["c"])


@pytest.mark.parametrize("value", ["text", "bytes"])
def test_text_and_bytes_are_stored_as_bytes_of_variable_length(value: Any) -> None:
    spec = _spec(shape=(None,), value=value)
    assert FeatureSpec.from_json(spec.to_json()) == spec != _spec(shape=(None,))
    assert str(spec) == f"a: {value}"
    for change in ({"shape": (2,)}, {"shape": (None, 2)}, {"dtype": np.dtype("i1")}):
        with pytest.raises(SchemaError, match="text and bytes"):
            _spec(**{"shape": (None,), "value": value, **change})


def test_groups() -> None:
    schema = Schema([_spec(name=n, group=g) for n, g in zip("abcd", (0, 1, 0, 2), strict=True)])
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.num_groups == 3
    assert [list(group) for group in schema.groups] == [["a", "c"], ["b"], ["d"]]
    subset = schema.select(["d", "b"])
    assert [list(group) for group in subset.groups] == [["b"], ["d"]]
    assert subset["d"].group == 2, "a selection keeps the numbers of its dataset"
    for groups in ((1,), (1, 0), (0, 2), (0, 1, 3)):
        broken = Schema([_spec(name=f"f{i}", group=g) for i, g in enumerate(groups)])
        with pytest.raises(SchemaError, match="groups are not numbered"):
            broken.check_groups()
        with pytest.raises(SchemaError, match="groups are not numbered"):
            Schema.from_json(broken.to_json())
