"""Parse the description of a TFDS dataset of episodes (RLDS): features of steps, splits and files.

https://github.com/google-research/rlds#dataset-format and
https://github.com/tensorflow/datasets/blob/master/tensorflow_datasets/core/proto/feature.proto.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.specs import feature_name
from seqrecord.formats.sources.rlds.tfrecord import Values
from seqrecord.in_place.files import is_file, list_folder, read_bytes
from seqrecord.store.schema import MAX_FRAME_BYTES
from seqrecord.store.text import counted, repr_of

FEATURES = "features.json"
INFO = "dataset_info.json"
_MAX_BYTES = 16 << 20
_MAXINFO_BYTES = 64 << 20
_MAX_DEPTH = 16  # nested features
_MAX_SHARDS = 1 << 20
_MAX_RECORDS = 1 << 20  # of a shard: TFDS makes them of about 200 MB
_WRONG_VALUES = (ValueError, AttributeError, KeyError, TypeError, OverflowError)
_MAX_FOLDERS = 2  # NAME/VERSION/, or NAME/CONFIG/VERSION/
_STEPS = "steps"
_WITHOUT_NUMPY = re.compile("bfloat16|float8_.*|u?int4|qu?int(8|16|32)")  # dtypes of TensorFlow
_SHARD = re.compile(r"(?:.+-)?([A-Za-z0-9_]+)\.tfrecord-(\d{5,9})-of-(\d{5,9})")


@dataclass(frozen=True)
class RldsFeature:
    """A feature of a step or of the episode.

    Args:
        key: name in the Example: `steps/observation/image`.
        name: feature name: `observation.image`.
        kind: `tensor`, `image`, `text`, `label`, or a description of an unsupported kind.
        dtype: dtype of a tensor or image.
        shape: shape of a tensor.
        encoding: encoding of a tensor as bytes: `none`, `bytes` or `zlib`.
        labels: texts by label number.
    """

    key: str
    name: str
    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    encoding: str = "none"
    labels: tuple[str, ...] = ()

    @property
    def can_be_read(self) -> bool:
        return self.kind in ("tensor", "image", "text", "label") and min(self.shape, default=1) > 0

    @property
    def labels_file(self) -> str:
        """Name of the file with a label's texts."""
        return f"{self.key.replace('/', '-')}.labels.txt"

    @property
    def per_step(self) -> int:
        """Number of values per step in the Example."""
        is_flat = self.kind == "tensor" and self.encoding == "none"
        return max(math.prod(self.shape), 1) if is_flat else 1

    def count(self, values: Values) -> int:
        """Return the number of steps in these values. Raises `ValueError` for a partial step."""
        steps, remainder = divmod(len(values), self.per_step)
        if remainder:
            raise ValueError(
                f"{self.key}: expected a multiple of {self.per_step} values, got {len(values)}"
            )
        return steps

    def column(self, values: Values) -> Any:
        """Return the steps' values: array [T, ...], texts or images. Raises `ValueError`."""
        if self.kind == "tensor":
            return self.array(values)
        if self.kind != "image":
            return self.texts(values)
        if not isinstance(values, list):
            raise ValueError(f"{self.key}: expected encoded images, got numbers")
        return values

    def texts(self, values: Values) -> list[str]:
        """Return the steps' texts. Raises `ValueError` for invalid UTF-8 or labels.

        A step without a label (number -1) has an empty text.
        """
        if self.kind == "label":
            if isinstance(values, list) or values.dtype.kind != "i":
                raise ValueError(f"{self.key}: expected label numbers")
            if len(invalid_labels := values[(values < -1) | (values >= len(self.labels))]):
                raise ValueError(
                    f"{self.key}: expected labels below {len(self.labels)}, got {invalid_labels[0]}"
                )
            return [self.labels[number] if number >= 0 else "" for number in values.tolist()]
        if not isinstance(values, list):
            raise ValueError(f"{self.key}: expected texts, got numbers")
        return [str(value, "utf-8") for value in values]

    def array(self, values: Values) -> npt.NDArray[Any]:
        """Return a tensor's values [steps, *shape]. Raises `ValueError` for values of another
        dtype."""
        dtype = np.dtype(self.dtype)
        if self.encoding != "none":
            if not isinstance(values, list):
                raise ValueError(f"{self.key}: expected encoded tensors, got numbers")
            size = math.prod(self.shape) * dtype.itemsize
            rows = [_decode_tensor(value, self.encoding, size) for value in values]
            return np.frombuffer(b"".join(rows), dtype.newbyteorder("<")).reshape(-1, *self.shape)
        if not isinstance(values, np.ndarray):
            raise ValueError(f"{self.key}: expected {self.dtype}, got bytes")
        if (dtype.kind == "f") != (values.dtype.kind == "f"):
            raise ValueError(f"{self.key}: expected {self.dtype}, got {values.dtype.name}")
        array = values.astype(dtype)
        if dtype.kind in "iub" and not np.array_equal(array.astype(np.int64), values):
            raise ValueError(f"{self.key}: a value is out of range of {self.dtype}")
        return array.reshape(-1, *self.shape)


@dataclass(frozen=True)
class RldsFeatures:
    """Features of the steps, and features of the episode."""

    steps: tuple[RldsFeature, ...]
    episode: tuple[RldsFeature, ...]


def read_features(path: Path) -> RldsFeatures:
    """Read features.json. Raises `SourceError` for an invalid file or one without steps."""
    try:
        tree = json.loads(read_bytes(path, _MAX_BYTES))
        features = [_add_labels(feature, path.parent) for feature in _walk(tree, "", 0)]
    except (*_WRONG_VALUES, RecursionError) as error:
        raise SourceError("invalid features.json", file=str(path), got=str(error)[:200]) from error
    steps = tuple(f for f in features if f.key.startswith(f"{_STEPS}/"))
    if not steps:
        raise SourceError(
            "TFDS dataset without episodes (RLDS)",
            file=str(path),
            expected="a feature `steps` of type Dataset",
            got=", ".join(f.key for f in features)[:200],
        )
    names = [feature.name for feature in steps]
    if duplicate_names := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError("duplicate feature names", file=str(path), got=", ".join(duplicate_names))
    return RldsFeatures(steps, tuple(f for f in features if not f.key.startswith(f"{_STEPS}/")))


def _add_labels(feature: RldsFeature, folder: Path) -> RldsFeature:
    """Add a label's texts. Without a file of texts, the label is a number."""
    place = folder / feature.labels_file
    if feature.kind != "label":
        return feature
    if not is_file(place):
        return replace(feature, kind="tensor")
    lines = read_bytes(place, _MAX_BYTES).decode().split("\n")
    return replace(feature, labels=tuple(line.strip() for line in lines if line.strip()))


def _walk(node: Any, key: str, depth: int) -> Iterator[RldsFeature]:
    if not isinstance(node, dict) or depth > _MAX_DEPTH:
        raise ValueError(f"{key or 'the file'} is not the description of a feature")
    if "featuresDict" in node:
        for name, child in _object(_object(node, "featuresDict", key), "features", key).items():
            yield from _walk(child, f"{key}/{name}" if key else name, depth + 1)
    elif "sequence" in node and key == _STEPS:
        yield from _walk(_object(node, "sequence", key).get("feature"), key, depth + 1)
    else:
        yield _leaf(node, key)


def _leaf(node: dict[str, Any], key: str) -> RldsFeature:
    name = feature_name(key.removeprefix(f"{_STEPS}/"))
    if "image" in node:
        image = _object(node, "image", key)
        if image.get("dtype") in ("uint8", "uint16"):
            return RldsFeature(key, name, "image", str(image["dtype"]))
        return RldsFeature(key, name, f"image of {image.get('dtype')}"[:50])
    if "text" in node:
        return RldsFeature(key, name, "text", "string")
    if "classLabel" in node:
        return RldsFeature(key, name, "label", "int64")
    for content in ("tensor", "boundingBox"):
        if content in node:
            return _tensor(_object(node, content, key), key, name)
    kinds = [k for k in node if k not in ("pythonClassName", "description")]
    return RldsFeature(key, name, (kinds or ["unknown"])[0][:50])


def _tensor(tensor: dict[str, Any], key: str, name: str) -> RldsFeature:
    dtype, encoding = str(tensor.get("dtype")), str(tensor.get("encoding", "none")) or "none"
    shape = tensor.get("shape") or {}
    sizes = shape.get("dimensions", []) if isinstance(shape, dict) else None
    if not isinstance(sizes, list):
        raise ValueError(f"invalid shape of {key}: {shape!r}"[:200])
    dimensions = tuple(int(size) for size in sizes)  # TFDS writes them as text
    if dtype in ("string", "object"):
        return RldsFeature(key, name, "text" if not dimensions else "tensor of texts", "string")
    if _WITHOUT_NUMPY.fullmatch(dtype):
        return RldsFeature(key, name, f"tensor of {dtype}")
    try:
        itemsize = np.dtype(dtype).itemsize
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"invalid dtype of {key}: {dtype[:50]}") from error
    if np.dtype(dtype).kind not in "iufb" or encoding not in ("none", "bytes", "zlib"):
        return RldsFeature(key, name, f"tensor of {dtype}, encoded as {encoding}"[:80])
    if math.prod(max(n, 1) for n in dimensions) * itemsize > MAX_FRAME_BYTES:
        raise ValueError(f"{key} is too large: {list(dimensions)}"[:200])
    return RldsFeature(key, name, "tensor", dtype, dimensions, encoding)


def _decode_tensor(value: memoryview, encoding: str, size: int) -> bytes:
    data = bytes(value)
    if encoding == "zlib":
        stream = zlib.decompressobj()
        try:
            data = stream.decompress(data, size + 1)
        except zlib.error as error:
            raise ValueError(f"tensor is not zlib data: {error}") from error
    if len(data) != size:
        raise ValueError(f"expected a tensor of {size} bytes, got {len(data)} or more")
    return data


def _object(node: dict[str, Any], name: str, key: str) -> dict[str, Any]:
    value = node.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name} of {key or 'the file'} is not an object")
    return value


@dataclass(frozen=True)
class Shard:
    """A file of records; `num_records` is from dataset_info.json, if declared."""

    split: str
    file: str
    num_records: int | None


def find_dataset(root: Path) -> Path | None:
    """Return the folder of `features.json`: `root`, or the only such folder below it."""
    folders = _find_folders(root, _MAX_FOLDERS)
    if len(folders) > 1:
        raise SourceError(
            "several TFDS datasets; choose a single folder",
            file=str(root),
            expected=f"one {FEATURES}",
            got=", ".join(str(path.relative_to(root)) for path in folders)[:200],
        )
    return folders[0] if folders else None


def _find_folders(folder: Path, depth: int) -> list[Path]:
    if is_file(folder / FEATURES):
        return [folder]
    if not depth:
        return []
    names = sorted(name for name, is_folder in list_folder(folder) if is_folder)
    return [path for name in names for path in _find_folders(folder / name, depth - 1)]


def find_shards(folder: Path) -> list[Shard]:
    """Return all shards by split and number.

    Raises `SourceError` for missing shards and for shards that `dataset_info.json` does not
    declare.
    """
    declared_splits = read_splits(folder)
    files_by_split: dict[str, dict[int, str]] = {}
    totals: dict[str, int] = {}
    for name, is_folder in sorted(list_folder(folder)):
        match = None if is_folder else _SHARD.fullmatch(name)
        if match is None:
            continue
        split, number, total = match[1], int(match[2]), int(match[3])
        if totals.setdefault(split, total) != total or number in files_by_split.get(split, {}):
            raise SourceError(
                "the shards do not belong to one dataset",
                file=str(folder / name),
                expected=f"one file per shard, {totals[split]} shards of {split}",
                got=f"shard {number} of {total}",
            )
        files_by_split.setdefault(split, {})[number] = name
    if not files_by_split:
        raise SourceError("no TFRecord file", file=str(folder), expected="NAME-SPLIT.tfrecord-…")
    shards: list[Shard] = []
    splits = {*files_by_split, *declared_splits}
    for split in sorted(splits, key=lambda name: (name != "train", name)):
        files, lengths = files_by_split.get(split, {}), declared_splits.get(split)
        with located(SourceError, file=str(folder)):
            shards += _shards_of_split(split, files, totals.get(split, 0), lengths)
    if declared_splits and (undeclared_splits := {*files_by_split} - {*declared_splits}):
        raise SourceError(
            f"{INFO} does not declare all splits; move the files of the others to another "
            "folder, or declare them",
            file=str(folder),
            expected=", ".join(declared_splits),
            got=", ".join(
                f"{name} ({counted(totals[name], 'shard')})" for name in sorted(undeclared_splits)
            ),
        )
    return shards


def _shards_of_split(
    split: str, files: Mapping[int, str], total: int, lengths: Sequence[int | None] | None
) -> list[Shard]:
    """Return a split's shards: `files` by number, of `total`, with the declared `lengths`."""
    lengths = [None] * total if lengths is None else lengths
    num_declared = len(lengths)
    absent_number = next((number for number in range(num_declared) if number not in files), None)
    is_empty = not total and all(length == 0 for length in lengths)
    if (absent_number is not None or total != num_declared) and not is_empty:
        records = sum(length or 0 for length in lengths)
        has_gap = bool(files) and absent_number is not None
        raise SourceError(
            f"missing shards, or more than {INFO} declares; download the split again",
            expected=f"{split}: {counted(num_declared, 'file')}"
            + (f", {counted(records, 'record')}" if records else ""),
            got=counted(len(files), "file") + (f", without number {absent_number}" * has_gap),
        )
    return [Shard(split, files[number], lengths[number]) for number in range(total)]


def read_splits(folder: Path) -> Mapping[str, Sequence[int | None]]:
    """Return each declared split's records per shard; empty without `dataset_info.json`.

    Older versions of TFDS declare the number of shards only: their records are `None`.
    """
    path = folder / INFO
    if not is_file(path):
        return {}
    try:
        info = json.loads(read_bytes(path, _MAXINFO_BYTES))
        kind = info.get("fileFormat", "tfrecord")
        splits = {str(split["name"]): _shard_lengths(split) for split in info.get("splits", [])}
    except (*_WRONG_VALUES, RecursionError) as error:
        raise SourceError(f"invalid {INFO}", file=str(path), got=str(error)[:200]) from error
    if kind not in ("tfrecord", ""):
        raise SourceError(
            "unsupported file format of a TFDS dataset",
            file=str(path),
            expected="tfrecord",
            got=repr_of(kind, 50),
        )
    return splits


def _shard_lengths(split: dict[str, Any]) -> list[int] | list[None]:
    lengths = [int(length) for length in split.get("shardLengths", [])]
    if min(lengths, default=0) < 0:
        raise ValueError(f"negative shard length {min(lengths)}")
    if max(lengths, default=0) > _MAX_RECORDS:
        raise ValueError(f"shards of more than {_MAX_RECORDS} records")
    if (count := int(split.get("numShards", 0))) > _MAX_SHARDS:
        raise ValueError(f"more than {_MAX_SHARDS} shards: {count}")
    return lengths or [None] * count
