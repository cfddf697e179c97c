"""Schema of frames: named features with dtype, shape, codec and group."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SchemaError
from seqrecord.store.bfloat16 import BFLOAT16, NAME, dtype_code, is_bfloat16
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_integer
from seqrecord.store.value_kinds import VALUE_KINDS, ValueKind, ValueName

MAX_FEATURES = 1024
MAX_FRAME_BYTES = 1 << 30  # of one feature of one frame, decoded


@dataclass(frozen=True)
class EncodedImage:
    """Bytes of a PNG, JPEG or npy file, stored unchanged by the codec `seqrecord.image`.

    Example:
        import io
        from PIL import Image

        file = io.BytesIO()
        Image.new("RGB", (64, 48)).save(file, "png")
        image = seqrecord.EncodedImage(file.getvalue())
        with seqrecord.SeqRecordWriter("photos-records/") as writer:
            with writer.episode("photos") as episode:
                episode.append({"photo": image})
    """

    data: bytes


Frame: TypeAlias = "Mapping[str, npt.ArrayLike | EncodedImage]"
"""One time step before storing: an array or an `EncodedImage` by feature name.

Absent features are omitted, not `None`.
"""


class Block(NamedTuple):
    """Consecutive frames of an episode, stored by column; each frame has the same features.

    `columns` has an array [num_frames, …], or a sequence of items, for each feature.
    """

    num_frames: int
    columns: Mapping[str, npt.NDArray[Any] | Sequence[Any]]

    @classmethod
    def of(cls, frame: Frame) -> Block:
        """A block of one frame; raises `SchemaError` if a value is `None`."""
        problem = "None is not a value; leave the feature out of a frame that lacks it"
        for name, item in frame.items():
            if item is None:
                raise SchemaError(problem, feature=name)
        return cls(1, {name: (item,) for name, item in frame.items()})

    def frames(self) -> Iterator[Frame]:
        """Iterate over the frames; arrays are views."""
        for row in range(self.num_frames):
            yield {name: column[row] for name, column in self.columns.items()}


@dataclass(frozen=True)
class FeatureSpec:
    """A feature: name, little-endian dtype, shape of one frame, codec, group, kind and unit.

    Attributes:
        dtype: of one frame as stored; `seqrecord.types.BFLOAT16` for bfloat16, which NumPy lacks.
        shape: of one frame; `None` is a dimension that varies between frames.
        codec: chain of JSON configurations in the order of encoding; empty for raw frames.
        group: number of the feature's group. Features with one number share chunks.
        kind: `image`, `depth`, `pose`, …; `None` if undeclared.
        unit: of the numbers: `m`, `px`, `rad`, …; `None` if undeclared.
        value_kind: behaviour of the frames' values, by `value` and `shape`.
        value: `"text"` or `"bytes"` if frames are `str` or `bytes`, stored as `uint8 [?]` (text in
            UTF-8); `"array"` otherwise.
        added: id of the writer that added the feature to existing episodes; `None` otherwise.
        stored_shape: shape on disk if the open dataset resizes frames; `None` otherwise.
        nbytes: bytes of one decoded frame; a variable dimension counts as 1.

    Raises `SchemaError` for values that docs/format.md does not allow.

    Example:
        spec = seqrecord.open("records/").features["image_left"]
        print(spec.dtype, spec.shape, spec.kind)
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    codec: tuple[CodecConfig, ...] = field(default=(), hash=False)
    group: int = 0
    kind: str | None = None
    unit: str | None = None
    value: ValueName = "array"
    added: str | None = None
    stored_shape: tuple[int | None, ...] | None = None
    value_kind: ValueKind = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_group(self.name, self.group)
        check_matches(self.name, "kind", self.kind, KIND)
        check_matches(self.name, "unit", self.unit, UNIT)
        check_matches(self.name, "writer that added it", self.added, ADDED)
        object.__setattr__(self, "dtype", check_dtype(self.name, self.dtype))
        object.__setattr__(self, "shape", check_shape(self.name, self.shape))
        object.__setattr__(self, "codec", check_codec(self.name, self.codec))
        check_value(self.name, self.value, self.dtype, self.shape)
        object.__setattr__(self, "value_kind", VALUE_KINDS[self.value][None in self.shape])
        nbytes = self.dtype.itemsize * math.prod(n for n in self.shape if n is not None)
        object.__setattr__(self, "nbytes", nbytes)
        limit, problem = f"at most {MAX_FRAME_BYTES} bytes", "a frame of this feature is too large"
        refuse(nbytes > MAX_FRAME_BYTES, problem, nbytes, limit, self.name)

    @property
    def is_fixed(self) -> bool:
        """Whether all frames have the same shape."""
        return None not in self.shape

    @property
    def is_dropped(self) -> bool:
        """Whether the feature was dropped: only its pages remain, readers ignore it."""
        return self.name.startswith("~")

    @property
    def stored(self) -> FeatureSpec:
        """The feature with its shape on disk, before the resize of an open dataset."""
        if self.stored_shape is None:
            return self
        return replace(self, shape=self.stored_shape, stored_shape=None)

    @property
    def is_video(self) -> bool:
        """Whether pages are groups of pictures rather than a blob per frame."""
        return bool(self.codec) and self.codec[0]["id"] == "video"

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether `shape` matches the feature's shape."""
        return len(shape) == len(self.shape) and all(
            want is None or want == got for want, got in zip(self.shape, shape, strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        added = {} if self.added is None else {"added": self.added}
        return {
            "name": self.name,
            "dtype": dtype_code(self.dtype),
            "shape": list(self.shape),
            "codec": [dict(config) for config in self.codec],
            "group": self.group,
            "kind": self.kind,
            "unit": self.unit,
            "value": self.value,
            **added,
        }

    @classmethod
    def from_json(cls, value: object) -> FeatureSpec:
        """Inverse of `to_json`; raises `SchemaError` for malformed input."""
        is_wrong = not isinstance(value, dict) or set(value) | {"added"} != _KEYS | {"added"}
        problem = "a feature is not an object of the right keys"
        refuse(is_wrong, problem, value, ", ".join(sorted(_KEYS)))
        assert isinstance(value, dict)
        name = value["name"]
        refuse(not isinstance(name, str), "a feature's name is not text", name)
        dtype = value["dtype"]
        if not isinstance(dtype, str) or dtype not in DTYPES:  # NumPy accepts many other texts
            raise unstorable(name, repr_of(dtype))
        for key in ("shape", "codec"):
            is_list = isinstance(value[key], list)
            refuse(not is_list, f"{key} is not a list", value[key], feature=name)
        options = {key: value[key] for key in ("group", "kind", "unit", "value")}
        if "added" in value:
            # Text that no id matches in place of null, which is invalid here.
            options["added"] = "" if value["added"] is None else value["added"]
        form: Any = dtype
        return cls(name, form, tuple(value["shape"]), tuple(value["codec"]), **options)

    def __str__(self) -> str:
        return f"{self.name}: {self.value_kind.describe(self)}"


_KEYS = frozenset(field.name for field in fields(FeatureSpec)) - {
    "added",
    "stored_shape",
    "value_kind",
    "nbytes",
}


class Schema(dict[str, FeatureSpec]):
    """The features of a dataset by name, in stored order: a dict that does not change.

    Attributes:
        variable: the features with a variable dimension, in their order.
        num_groups: number of groups.

    Raises `SchemaError` for an empty list, too many features or duplicate names.

    Example:
        schema = seqrecord.open("records/").features
        print(list(schema), schema.frame_nbytes)
    """

    def __init__(self, features: Sequence[FeatureSpec]) -> None:
        _check_number(len(features))
        super().__init__({spec.name: spec for spec in features})
        if len(self) != len(features):
            names = [spec.name for spec in features]
            duplicates = sorted({name for name in names if names.count(name) > 1})
            raise SchemaError("a feature name is used twice", got=", ".join(duplicates))
        self.variable = tuple(spec for spec in features if not spec.is_fixed)
        self.num_groups = len({spec.group for spec in features})

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (list(self.values()),)

    def _refuse_change(self, *_: object, **__: object) -> NoReturn:
        """Raise `TypeError`: the datasets that share a schema rely on it."""
        raise TypeError("a Schema does not change; dict(schema) is a copy that does")

    __setitem__ = __delitem__ = __ior__ = _refuse_change
    update = setdefault = pop = popitem = clear = _refuse_change

    def __eq__(self, other: object) -> bool:
        # The order matters: it is the order of columns.
        return isinstance(other, Schema) and list(self.values()) == list(other.values())

    def __ne__(self, other: object) -> bool:
        return not self == other  # a dict's ignores the order

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.values()))

    def __repr__(self) -> str:
        return f"Schema({'; '.join(map(str, self.values()))})"

    @property
    def active(self) -> Schema:
        """The schema without dropped features."""
        specs = [spec for spec in self.values() if not spec.is_dropped]
        return self if len(specs) == len(self) else Schema(specs)

    def continues(self, other: Schema, *, edited: bool = False) -> bool:
        """Whether this schema equals `other` after appending or dropping features.

        With `edited`, names, kinds and units may differ.
        """
        if len(other) > len(self):
            return False
        for spec, old_spec in zip(self.values(), other.values(), strict=False):
            if edited and spec != old_spec:
                old_spec = replace(old_spec, name=spec.name, kind=spec.kind, unit=spec.unit)
            if spec.is_dropped or old_spec.is_dropped:
                old_spec = replace(old_spec, name=spec.name)
            if spec != old_spec:
                return False
        return True

    @property
    def frame_nbytes(self) -> int:
        """Decoded bytes of one frame with every feature present."""
        return sum(spec.nbytes for spec in self.values())

    @property
    def groups(self) -> tuple[Schema, ...]:
        """A schema for each group, in order of group number."""
        specs_by_group = dict[int, list[FeatureSpec]]()
        for spec in self.values():
            specs_by_group.setdefault(spec.group, []).append(spec)
        return tuple(Schema(specs) for _, specs in sorted(specs_by_group.items()))

    def group(self, number: int) -> Schema:
        """The features of one group, in order. Raises `SchemaError` if there is none."""
        return Schema([spec for spec in self.values() if spec.group == number])

    def check_groups(self) -> None:
        """Raise `SchemaError` unless groups are numbered 0, 1, … in order of their first features.

        A dataset's schema must satisfy this, and `store.format.page_kinds.check_shared_groups`. A
        selection of features keeps its group numbers.
        """
        numbers = list(dict.fromkeys(spec.group for spec in self.values()))
        problem = "groups are not numbered in the order of their first features"
        expected = f"0 to {len(numbers) - 1}, in this order"
        refuse(numbers != list(range(len(numbers))), problem, numbers, expected)

    def position(self, name: str) -> int:
        """Position of the feature in the schema, over all groups."""
        return list(self).index(name)

    def select(self, names: Sequence[str] | None) -> Schema:
        """The named features in the order of `names`; for `None` all except dropped ones."""
        active = self.active
        if names is None:
            return active
        argument: object = names
        is_list = isinstance(argument, Collection) and getattr(argument, "ndim", 1) > 0
        if not is_list or isinstance(argument, str) or not all(isinstance(n, str) for n in names):
            expected = f"a list such as {[argument]}" if isinstance(argument, str) else None
            raise SchemaError(
                "not a list of features' names", expected=expected, got=repr_of(argument)
            )
        if unknown_names := [name for name in names if name not in active]:
            expected = f"some of {', '.join(active)}"
            raise SchemaError("no such feature", expected=expected, got=", ".join(unknown_names))
        return Schema([self[name] for name in names])

    def with_codecs(self, codecs: Mapping[str, Sequence[CodecConfig]]) -> Schema:
        """The same features with new codecs for the names in `codecs`."""
        return Schema(
            [
                replace(spec, codec=tuple(codecs[spec.name])) if spec.name in codecs else spec
                for spec in self.values()
            ]
        )

    def renamed(self, names: Mapping[str, str]) -> Schema:
        """The same features with new names.

        Raises `SchemaError` for an invalid or duplicate name, and for a dropped feature's.
        """
        specs = [replace(spec, name=names.get(spec.name, spec.name)) for spec in self.values()]
        for spec, old_spec in zip(specs, self.values(), strict=True):
            is_wrong = spec.is_dropped and not old_spec.is_dropped
            problem = "invalid feature name: reserved for dropped features"
            refuse(is_wrong, problem, spec.name, feature=old_spec.name)
        return Schema(specs)

    def to_json(self) -> list[dict[str, Any]]:
        return [spec.to_json() for spec in self.values()]

    @classmethod
    def from_json(cls, value: object) -> Schema:
        """Inverse of `to_json`; raises `SchemaError` for malformed input."""
        if not isinstance(value, list):
            raise SchemaError("a schema is not a list of features", got=repr_of(value))
        _check_number(len(value))
        schema = cls([FeatureSpec.from_json(feature) for feature in value])
        for place, spec in enumerate(schema.values()):
            is_wrong = spec.is_dropped and spec.name != f"~{place}"
            problem = "a dropped feature is not named by its place"
            refuse(is_wrong, problem, spec.name, f"~{place}")
        schema.check_groups()
        return schema


MAX_NAME_LENGTH = 128  # ASCII characters
MAX_DIMENSIONS = 8
MAX_CODECS = 4  # in a feature's chain
MAX_GROUPS = 256

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_DROPPED = re.compile(r"~[0-9]{1,4}")  # a dropped feature: its position in the schema
ADDED = re.compile(r"[0-9a-f]{16}")
KIND = re.compile(r"[a-z][a-z0-9_]{0,31}")
UNIT = re.compile(r"[\x20-\x7e]{1,32}")
_CODES = "|b1 |i1 <i2 <i4 <i8 |u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16"
DTYPES = frozenset((*_CODES.split(), NAME))

CodecConfig = Mapping[str, Any]
"""A codec as its JSON configuration: `{"id": "zstd", "level": 1}`."""


def refuse(
    is_wrong: bool,
    problem: str,
    got: object,
    expected: object = None,
    feature: str | None = None,
) -> None:
    """Raise `SchemaError` for a wrong value, which is not trusted."""
    if is_wrong:
        raise SchemaError(problem, feature=feature, expected=expected, got=repr_of(got))


def _check_number(count: int) -> None:
    is_wrong = not 1 <= count <= MAX_FEATURES
    refuse(is_wrong, "wrong number of features", count, f"1 to {MAX_FEATURES}")


def check_name(name: object) -> None:
    """Raise `SchemaError` for an invalid feature name."""
    text = name if isinstance(name, str) and len(name) <= MAX_NAME_LENGTH else ""
    is_wrong = not (_NAME.fullmatch(text) or _DROPPED.fullmatch(text))
    expected = f"1 to {MAX_NAME_LENGTH} of A-Z a-z 0-9 _ and, inside, . and -"
    refuse(is_wrong, "not a feature name", name, expected)


def check_group(name: str, group: object) -> None:
    """Raise `SchemaError` for an invalid group number."""
    is_wrong = type(group) is not int or not 0 <= group < MAX_GROUPS
    refuse(is_wrong, "not the number of a group", group, f"0 to {MAX_GROUPS - 1}", name)


def check_matches(name: str, what: str, text: object, pattern: re.Pattern[str]) -> None:
    """Raise `SchemaError` unless `text` is `None` or matches `pattern`; `what` names it."""
    is_wrong = text is not None and not (isinstance(text, str) and pattern.fullmatch(text))
    refuse(is_wrong, f"not a {what}", text, f"null, or {pattern.pattern}", name)


def check_value(name: str, value: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> None:
    """Raise `SchemaError` for a value type that is unknown, or does not fit dtype and shape."""
    kinds = tuple(VALUE_KINDS)
    refuse(value not in kinds, "not a kind of value", value, f"any of {', '.join(kinds)}", name)
    form = VALUE_KINDS[value][None in shape].stored_form
    is_wrong = form not in (None, (dtype.str, shape))
    problem, got = "text and bytes are not of this dtype and shape", f"{dtype.str} {shape}"
    refuse(is_wrong, problem, got, "|u1 [null]", name)


def check_dtype(name: str, dtype: object) -> np.dtype[Any]:
    """The dtype in little-endian; raises `SchemaError` if it cannot be stored."""
    if is_bfloat16(dtype):
        return BFLOAT16
    try:
        checked: np.dtype[Any] = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError) as error:
        raise SchemaError("not a dtype", feature=name, got=repr_of(dtype)) from error
    little = checked.newbyteorder("<")
    if little.str not in DTYPES:
        raise unstorable(name, str(checked)[:200], _REMEDIES.get(checked.kind, ""))
    plain: np.dtype[Any] = np.dtype(little.str)  # without metadata
    return plain


_REMEDIES = {
    "O": "; for objects, an array of numbers of one shape, or a single str or bytes",
    "V": "; for a structured array, a feature per field: array['name']",
    "M": "; for datetimes, array.astype('int64') with a unit",
    "m": "; for time differences, array.astype('int64') with a unit",
    "U": "; for texts, a str",
    "S": "; for bytes, bytes",
}
"""Suggestions by kind of unsupported dtype."""


def unstorable(name: str, got: str, remedy: str = "") -> SchemaError:
    """Error for a dtype that cannot be stored."""
    return SchemaError(
        "a dtype that cannot be stored",
        feature=name,
        expected=f"bool, bfloat16, or integer, float or complex of at most 64 bits a part{remedy}",
        got=got,
    )


def check_shape(name: str, shape: object) -> tuple[int | None, ...]:
    """The shape as integers, `None` for a variable dimension; raises `SchemaError` if invalid."""
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS:
        expected = f"up to {MAX_DIMENSIONS} dimensions"
        raise SchemaError("not a shape", feature=name, expected=expected, got=repr_of(shape))
    for size in shape:
        is_wrong = size is not None and not (is_integer(size) and 1 <= size < 2**31)
        refuse(is_wrong, "not a dimension", size, "1 to 2**31 - 1, or null", name)
    return tuple(None if size is None else int(size) for size in shape)


def check_codec(name: str, codec: object) -> tuple[CodecConfig, ...]:
    """A copy of a codec chain; raises `SchemaError` if invalid."""
    if not isinstance(codec, tuple) or len(codec) > MAX_CODECS:
        problem = f"not a chain of at most {MAX_CODECS} codecs"
        raise SchemaError(problem, feature=name, got=repr_of(codec))
    for config in codec:
        is_right = isinstance(config, Mapping) and isinstance(config.get("id"), str)
        refuse(not is_right, "a codec is an object with an id", config, feature=name)
    return tuple(dict(config) for config in codec)
