"""Source for RLDS datasets in TFRecord files of TFDS; TensorFlow is not needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.embedded import embedded_spec, embedded_value
from seqrecord.formats.sources.common.originals import FirstError, Originals, has_file
from seqrecord.formats.sources.common.specs import (
    UnsupportedError,
    feature_spec,
    kind_of,
    select_names,
    text_spec,
)
from seqrecord.formats.sources.common.splits import stored_split
from seqrecord.formats.sources.inventory import Account, LeftOut, not_selected, unread_files
from seqrecord.formats.sources.rlds.layout import (
    FEATURES,
    INFO,
    RldsFeature,
    RldsFeatures,
    Shard,
    find_dataset,
    find_shards,
    read_features,
    read_splits,
)
from seqrecord.formats.sources.rlds.tfrecord import (
    RECORD_HEAD,
    TfRecord,
    TfRecordFile,
    Values,
    parse_example,
)
from seqrecord.in_place.boundary import reader_boundary
from seqrecord.in_place.files import list_folder, size_of
from seqrecord.store.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import FeatureSpec, Frame, Schema
from seqrecord.store.text import counted

_DECLARED = INFO  # metadata key: numbers of declared and found records
_PLACE = ("file", "offset")  # metadata keys: where an episode's record is
_MAX_VALUES = 64
# The first record may be damaged: tests/formats/test_rlds.py has
# test_a_bad_first_record_of_the_only_shard.
_MOST_TRIED = 32  # unreadable records of a shard before its images are given up
_MAX_TEXT = 4096  # bytes of a text in the metadata


@dataclass(frozen=True)
class RldsSource(Originals):
    """A TFDS dataset of episodes (RLDS) in TFRecord files.

    ::

        ROOT/features.json, ROOT/dataset_info.json
        ROOT/NAME-train.tfrecord-00000-of-00042             one record per episode

    Episode keys are `train/000000`: split and index in the split. Splits are stored, unless all
    episodes are in `train`: `seqrecord split` divides these. A feature is a value per step:
    `observation/image` becomes `observation.image`; images are uint8 or uint16, [H, W] or [H, W,
    C]. Texts such as `language_instruction` are text features. So are labels with names
    (`ClassLabel`), since their numbers differ between datasets. TFRecord stores float64 as float32.
    Short values of the episode are stored in its metadata: texts, and up to 64 numbers.

    The record counts in `dataset_info.json` must match the files. A record's checksums are verified
    when it is read; it is in memory while its frames are read.

    Args:
        root: folder of the dataset, or a folder above a single dataset.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    unpickled = ("_seen",)

    def exists(self) -> bool:
        """Return whether there is a `features.json` with TFRecord files beside it."""
        return has_file(self.path, _is_dataset)

    def schema(self) -> Schema:
        return self._schema

    def episodes(self) -> Sequence[EpisodeInfo]:
        episodes: list[EpisodeInfo] = []
        ordinal, split = 0, None
        shards = find_shards(self._folder)
        all_splits = {shard.split for shard in shards}
        for shard in shards:
            if shard.split != split:
                ordinal, split = 0, shard.split
            infos = self._infos(shard, ordinal)
            ordinal += len(infos)
            stored = stored_split(split, all_splits)
            episodes += [replace(info, split=stored) for info in infos]
        if not episodes:
            raise SourceError("TFDS dataset without episodes", file=str(self._folder))
        self._seen[:] = episodes
        return episodes

    def account(self) -> Account:
        infos = self._seen or self.episodes()
        return _account_of(self.path, self._folder, self._features, self.schema(), infos)

    @cached_property
    def _seen(self) -> list[EpisodeInfo]:
        """The last result of `episodes()`, for the inventory."""
        return []

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            name, offset = info.metadata.get("file"), info.metadata.get("offset")
            if not isinstance(name, str) or Path(name).name != name or not isinstance(offset, int):
                raise SourceError("no such episode", file=str(self._folder))
            path = self._folder / name
            _check_declared(info, path)
            with TfRecordFile(path) as file:
                data = file.read(file.record_at(offset))
            with _examples(path, offset):
                columns = self._columns(parse_example(data))
            yield from self._frames(columns, path)

    @cached_property
    def _folder(self) -> Path:
        folder = find_dataset(self.path)
        if folder is None:
            raise SourceError("no TFDS dataset found", file=str(self.root), expected=FEATURES)
        return folder

    @cached_property
    def _features(self) -> RldsFeatures:
        return read_features(self._folder / FEATURES)

    @cached_property
    def _requested_features(self) -> tuple[RldsFeature, ...]:
        path, offered = (
            self._folder / FEATURES,
            {feature.name: feature for feature in self._features.steps},
        )
        names = select_names(offered, self.features, path, "no such feature")
        readable = ", ".join(name for name, feature in offered.items() if feature.can_be_read)
        features = []
        for feature in map(offered.__getitem__, names):
            with self.unless_unreadable(feature.name):
                if not feature.can_be_read:
                    raise UnsupportedError(
                        "unsupported kind of feature; select others (--features)",
                        file=str(path),
                        expected=f"features among {readable}",
                        got=f"{feature.name} ({feature.kind})"[:300],
                    )
                features.append(feature)
        return tuple(features)

    @cached_property
    def _schema(self) -> Schema:
        requested = {feature.name: feature for feature in self._requested_features}
        specs = self.specs_of(requested, lambda _, feature: self._spec(feature))
        self.check_any(specs)
        return Schema(specs)

    @cached_property
    def _selected_features(self) -> tuple[RldsFeature, ...]:
        requested_features = self._requested_features
        return tuple(feature for feature in requested_features if feature.name in self._schema)

    def _spec(self, feature: RldsFeature) -> FeatureSpec:
        path = self._folder / FEATURES
        if feature.kind == "tensor":
            dtype = np.dtype(feature.dtype)
            kind = kind_of(feature.name, dtype, feature.shape)
            return feature_spec(feature.name, dtype, feature.shape, path, kind=kind)
        if feature.kind == "image":
            return self._image_spec(feature)
        return text_spec(feature.name, path)

    def _image_spec(self, feature: RldsFeature) -> FeatureSpec:
        """Return the spec from the first readable image."""
        errors = FirstError()
        for shard in find_shards(self._folder):
            path = self._folder / shard.file
            previous_count = errors.count
            with errors.skipped(), TfRecordFile(path) as file:
                for record in file.records():
                    with errors.skipped():
                        with _examples(path, record.offset):
                            values = parse_example(file.read(record)).get(feature.key)
                        if isinstance(values, list) and values:
                            data, keep_encoded = bytes(values[0]), self.keep_encoded
                            return embedded_spec(
                                feature.name,
                                data,
                                path,
                                keep_encoded=keep_encoded,
                                exif=self.exif,
                                palettes=self.palettes,
                            )
                    if errors.count - previous_count >= _MOST_TRIED:
                        break
        raise errors.first or SourceError("no image", file=str(self._folder), feature=feature.name)

    # --- episodes: read as little as possible of a record -----------------------------------

    def _infos(self, shard: Shard, ordinal: int) -> list[EpisodeInfo]:
        """Return all episodes of a shard, including unreadable ones, for which `frames` raises.

        These are records after damage, and records beyond or short of the declared number.
        """
        path = self._folder / shard.file
        infos: list[EpisodeInfo] = []

        def add(offset: int, steps: int, metadata: dict[str, Any]) -> None:
            key = f"{shard.split}/{ordinal + len(infos):06d}"
            place = dict(zip(_PLACE, (shard.file, offset), strict=True))
            infos.append(EpisodeInfo(key, max(steps, 1), {**metadata, **place}))

        damage: SourceError | None = None
        try:
            with reader_boundary(), TfRecordFile(path) as file:
                for record in file.records():
                    add(record.offset, *self._read_info(file, record))
        except SourceError as error:
            damage = error
        num_records = len(infos)
        num_declared = num_records if shard.num_records is None else shard.num_records
        # After damage the rest of the file is lost: the declared number of records, at least one.
        end = (damage.offset or 0) if damage else size_of(path)
        for _ in range(max(num_declared - num_records, 1 if damage else 0)):
            add(end + RECORD_HEAD, 1, {})
        for number in range(min(num_declared, num_records), num_records if damage else len(infos)):
            numbers = {_DECLARED: [num_declared, num_records]}
            infos[number] = replace(infos[number], metadata={**infos[number].metadata, **numbers})
        return infos

    def _read_info(self, file: TfRecordFile, record: TfRecord) -> tuple[int, dict[str, Any]]:
        """Return a record's number of steps, 0 if unknown, and the episode's metadata."""
        described_features = {
            feature.key: feature
            for feature in self._features.episode
            if feature.kind in ("text", "label")
            or (feature.kind == "tensor" and feature.can_be_read)
        }
        counted_feature = min(self._features.steps, key=_bytes_per_step)
        try:
            values = parse_example(file.unread(record), {*described_features, counted_feature.key})
        except ValueError:
            return 0, {}
        try:
            steps = counted_feature.count(values.get(counted_feature.key, []))
        except ValueError:
            steps = 0
        return steps, _metadata(
            {key: values[key] for key in described_features if key in values}, described_features
        )

    # --- frames -----------------------------------------------------------------------------

    def _columns(self, values: Mapping[str, Values]) -> dict[str, Any]:
        """Return the steps' values by feature; the numbers of steps must be equal."""
        columns: dict[str, Any] = {}
        steps: dict[str, int] = {}
        for feature in self._selected_features:
            if feature.key not in values:
                raise ValueError(f"the record lacks {feature.key}")
            steps[feature.key] = feature.count(values[feature.key])
            columns[feature.name] = feature.column(values[feature.key])
        if len({*steps.values()}) > 1:
            raise ValueError(f"features differ in their number of steps: {steps}")
        return columns

    def _frames(self, columns: Mapping[str, Any], path: Path) -> Iterator[Frame]:
        images = {feature.name for feature in self._selected_features if feature.kind == "image"}
        for number in range(len(next(iter(columns.values())))):
            frame: dict[str, Any] = {}
            for name, column in columns.items():
                frame[name] = column[number]
                if name in images:
                    with located(SourceError, feature=name, frame=number):
                        frame[name] = embedded_value(
                            bytes(column[number]), self.schema()[name], path, self.exif
                        )
            yield frame


FORMAT = SourceFormat(
    "rlds",
    "features.json and NAME-train.tfrecord-00000-of-00042",
    RldsSource,
    ("exif",),
    takes_urls=True,
)


def _is_dataset(path: Path) -> bool:
    return path.name == FEATURES and any(
        ".tfrecord-" in name for name, _ in list_folder(path.parent)
    )


def _check_declared(info: EpisodeInfo, path: Path) -> None:
    """Raise `SourceError` for records beyond the declared number, or missing ones."""
    numbers = info.metadata.get(_DECLARED)
    if not isinstance(numbers, (list, tuple)) or len(numbers) != 2:
        return
    num_declared, num_records = numbers
    raise SourceError(
        "more records than dataset_info.json declares"
        if num_records > num_declared
        else "truncated TFRecord file: fewer records than dataset_info.json declares",
        file=str(path),
        offset=info.metadata["offset"],
        expected=counted(num_declared, "record"),
        got=counted(num_records, "record"),
    )


def _bytes_per_step(feature: RldsFeature) -> tuple[bool, bool, float]:
    """Sort key for cheap counting of steps: single numbers, then tensors, texts, images."""
    is_tensor = feature.kind == "tensor" and feature.encoding == "none"
    size = math.prod(feature.shape) if feature.can_be_read else math.inf
    return (not is_tensor, feature.kind == "image", size)


def _metadata(values: Mapping[str, Values], features: Mapping[str, RldsFeature]) -> dict[str, Any]:
    """Return short texts and numbers of the episode as JSON, nested like their names."""
    metadata: dict[str, Any] = {}
    for key, feature_values in values.items():
        feature = features[key]
        if len(feature_values) != feature.per_step or len(feature_values) > _MAX_VALUES:
            continue
        value: Any
        if isinstance(feature_values, list):
            if feature.kind != "text" or len(feature_values[0]) > _MAX_TEXT:
                continue
            value = bytes(feature_values[0]).decode(errors="replace")
        else:
            try:
                [value] = feature.column(feature_values)
            except ValueError:  # differs from its declaration
                continue
            if not isinstance(value, str):
                if not np.isfinite(value).all():
                    continue
                value = value.tolist()
        *parents, leaf = key.split("/")
        place = metadata
        for name in parents:
            child = place.setdefault(name, {})
            place = child if isinstance(child, dict) else {}  # a name contains `/`
        place.setdefault(leaf, value)
    return metadata


@contextmanager
def _examples(path: Path, offset: int) -> Iterator[None]:
    """Convert errors in a record to `SourceError`."""
    try:
        yield
    except ValueError as error:
        raise SourceError(
            "the record differs from features.json",
            file=str(path),
            offset=offset,
            got=str(error)[:300],
        ) from error


def _account_of(
    root: Path, folder: Path, features: RldsFeatures, schema: Schema, infos: Sequence[EpisodeInfo]
) -> Account:
    """Return the account of a dataset, from file names and sizes; `infos` are all episodes."""
    shards = find_shards(folder)
    used_files = {folder / name for name in (FEATURES, INFO, *(shard.file for shard in shards))}
    used_files |= {folder / feature.labels_file for feature in (*features.steps, *features.episode)}
    steps = sum(info.num_frames for info in infos)
    left_out, places = list[LeftOut](), dict[str, str]()
    for feature in features.steps:
        if feature.name in schema:
            places[feature.name] = f"*.tfrecord-*, feature {feature.key}"
        else:
            suffix = "" if feature.can_be_read else f", no reader ({feature.kind})"
            left_out.append(not_selected(f"feature {feature.name}", steps, "steps", also=suffix))
    for feature in features.episode:
        is_hidden = feature.key.partition("/")[0] in _PLACE
        num_absent = sum(is_hidden or not _has(info.metadata, feature.key) for info in infos)
        if num_absent:
            reason = f"no reader ({feature.kind})"
            if is_hidden:
                reason = "the metadata has the place of the record under its name"
            elif feature.can_be_read:
                reason = "not short text or numbers"
            left_out.append(
                LeftOut(f"episode feature {feature.key}", num_absent, reason, "episodes")
            )
    left_out += unread_files(root, lambda path: path in used_files)
    splits = Counter(shard.split for shard in shards)
    numbers = [f"{counted(count, 'shard')} of {split}" for split, count in splits.items()]
    reason = f"{FEATURES} with steps, {', '.join(numbers)}"
    declared = read_splits(folder)
    notes = [] if declared else [f"no {INFO}: record counts not checked"]
    for split, lengths in declared.items():
        if split not in splits:
            notes.append(f"split {split}: declared as empty, no files")
        elif lengths[0] is None:
            notes.append(f"split {split}: no shardLengths in {INFO}, record counts not checked")
    return Account(reason, places, tuple(left_out), tuple(notes))


def _has(metadata: Mapping[str, Any], key: str) -> bool:
    place: Any = metadata
    for name in key.split("/"):
        if not isinstance(place, Mapping) or name not in place:
            return False
        place = place[name]
    return True
