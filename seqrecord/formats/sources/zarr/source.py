"""Source for Diffusion Policy's replay buffers: Zarr groups with all episodes end to end.

::

    NAME.zarr/data/ACTION, …        [N, …], all episodes, one after the other
    NAME.zarr/meta/episode_ends     [E] int64: the row after each episode's last one

Format: https://github.com/real-stanford/diffusion_policy (common/replay_buffer.py). UMI stores the
same in one file, `NAME.zarr.zip`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, cast
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SeqRecordError, SourceError, located
from seqrecord.formats.sources.common.embedded import read_rows
from seqrecord.formats.sources.common.originals import Scan, ScannedSource, natural_order
from seqrecord.formats.sources.common.specs import check_spec, feature_spec, kind_of, text_spec
from seqrecord.formats.sources.inventory import (
    NOT_SELECTED,
    Account,
    LeftOut,
    Unwritten,
    left_out_by_pattern,
    unread_files,
)
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import first_line, is_directory, is_file, list_folder, opened
from seqrecord.in_place.limits import MAX_CHUNK_BYTES, check_frames, check_size
from seqrecord.in_place.remote import remote_files
from seqrecord.store.lazy import import_extra
from seqrecord.store.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import FeatureSpec, Frame
from seqrecord.store.text import counted

_ZIP = ".zarr.zip"
_ENDS = "meta/episode_ends"
_MAX_DIRECTORY_BYTES = 256 << 20  # of a ZIP file: about 3 million values
_MOST_CHUNKS = 1_000_000  # chunks of an array that are listed
_MOST_REMOTE = 1_000  # on a URL, where each folder of chunks is a request
_PLACE = ("buffer", "number")  # metadata keys: where an episode is
_NOT_PACKED = {
    "data": "in a subgroup of data/",
    "meta": "not a finite number per episode, or called buffer or number",
}
_PICKLE = re.compile(r'"([^"]*\.)?pickle"')  # a codec's name


@dataclass(frozen=True)
class ZarrSource(ScannedSource):
    """Replay buffers: one `NAME.zarr` or `NAME.zarr.zip`, or a folder of them.

    Episode keys are `NAME/000000` and so on. Each array of `data` is a feature. Arrays of `meta`
    with a number per episode are stored in its metadata. Rows after the last episode are not
    packed, as in Diffusion Policy; the inventory counts them.
    Missing chunks have the array's fill value, as Zarr defines.

    String arrays [N] are text features. Other non-numeric arrays are an error, unless `features`
    excludes them. Arrays whose codec would unpickle objects are an error. On a URL each chunk is a
    request; several run in parallel.

    Args:
        root: a buffer, or a folder of buffers.
        features: names to read, in that order; all by default.
        keep_encoded: no effect, since images are arrays.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    takes_files = True
    unpickled = ("_buffers",)

    def exists(self) -> bool:
        """Return whether there is a group with `data` and `meta/episode_ends`, or a `.zarr.zip`."""
        return bool(self._buffers)

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        with located(SourceError, episode=info.key):
            yield from self._read(info)

    @cached_property
    def _buffers(self) -> list[Path]:
        root = self.path
        if _is_buffer(root):
            return [root]
        if is_file(root):
            return []
        buffer_names = (n for n, is_folder in list_folder(root) if is_folder or n.endswith(_ZIP))
        names = sorted(buffer_names, key=natural_order)
        return [root / name for name in names if _is_buffer(root / name)]

    def scan(self, scan: Scan) -> None:
        if not self._buffers:
            raise SourceError(
                "no replay buffer found",
                file=str(self.root),
                expected="NAME.zarr with data/ and meta/episode_ends, or NAME.zarr.zip",
            )
        for path in self._buffers:
            broken_info = EpisodeInfo(_name(path), 0, {"buffer": path.name})
            with scan.unless_broken(broken_info), _open(path) as group:
                arrays = _arrays(group)
                scan.offered |= dict.fromkeys(arrays)
                specs = self.specs_of(arrays, partial(self._spec, path=path))
                scan.episodes += _infos(path, group)
                scan.specs += specs

    def account(self) -> Account:
        notes, unwritten = list[str](), Unwritten()
        rows, left_out_counts = Counter[str](), Counter[tuple[str, str, bool]]()
        for path in self._buffers:
            with skipping_unreadable(), _open(path) as group:  # raised by reading
                arrays, ends = _arrays(group), _episode_ends(group, path)
                meta = {_ENDS, *(f"meta/{name}" for name in _per_episode(group, path, len(ends)))}
                last_end, selected_places = max([0, *ends[-1:].tolist()]), list[str]()
                used_places = {*meta}
                for name, array in arrays.items():
                    place = f"data/{name}"
                    used_places.add(place)
                    if name in self.schema():
                        rows[name] += max(0, array.shape[0] - last_end)
                        selected_places.append(place)
                    else:
                        left_out_counts[place, NOT_SELECTED, False] += 1
                for place in (*selected_places, *sorted(meta)):
                    _count_chunks(group[place], path, unwritten, notes)
                try:
                    for place in sorted({*_array_places(group)} - used_places):
                        reason = _NOT_PACKED.get(place.partition("/")[0], "outside of data/")
                        left_out_counts[place, reason, True] += 1
                except Exception as error:  # zarr raises many types; episodes do not need these
                    notes.append(f"{path.name}: cannot list other arrays: {first_line(error)}")
        requested = {name: f"data/{name}" for name in self.features or ()}
        unwritten.check(requested, str(self.root))
        left_out = [
            LeftOut(f"data/{name}", count, "after the last episode", "rows")
            for name, count in rows.items()
            if count
        ]
        left_out += left_out_by_pattern(left_out_counts, "arrays")
        if self._buffers != [self.path]:
            left_out += unread_files(
                self.path,
                lambda path: path in self._buffers or path.parent in self._buffers,
                goes_down=lambda _, names: not {"data", "meta"} <= {*names},
            )
        reason = f"{counted(len(self._buffers), 'group')} with data/ and {_ENDS}"
        places = {name: f"data/{name}" for name in self.schema()}
        return Account(reason, places, tuple(left_out), (*notes, *unwritten.notes()))

    def _read(self, info: EpisodeInfo) -> Iterator[Frame]:
        name = str(info.metadata.get("buffer", ""))
        root = self.path
        path = root if root.name == name and _is_buffer(root) else root / name
        if "/" in name or not _is_buffer(path):
            raise SourceError("no such episode", file=str(self.root))
        with _open(path) as group:
            arrays = _arrays(group)
            ends = _episode_ends(group, path)
            start, stop = _bounds(ends, info.metadata.get("number"))
            readers: dict[str, Iterator[Any]] = {}
            for feature, spec in self.schema().items():
                if feature in arrays:
                    array = arrays[feature]
                    array_spec = self._spec(feature, array, path)
                    if array_spec.value != spec.value:
                        raise SourceError("the feature has both text and numbers")
                    if spec.value == "array":
                        check_spec(array.dtype, array.shape[1:], spec, path)
                    if array.shape[0] < stop:
                        raise SourceError(
                            "the array ends before the episode",
                            feature=feature,
                            expected=f"at least {stop} rows",
                            got=f"{array.shape[0]} rows",
                        )
                    readers[feature] = _values(read_rows(array, path, start, stop), spec)
            if not readers:
                raise SourceError("the episode has no frames of the selected features")
            check_frames(stop - start)
            for _ in range(start, stop):
                yield {feature: next(values) for feature, values in readers.items()}

    def _spec(self, name: str, array: Any, path: Path) -> FeatureSpec:
        if array.dtype.kind in "TU" and array.ndim == 1:
            return text_spec(name, path)
        dtype, shape = array.dtype, array.shape[1:]
        return feature_spec(name, dtype, shape, path, kind=kind_of(name, dtype, shape))


FORMAT = SourceFormat(
    "zarr",
    "NAME.zarr/data/… and NAME.zarr/meta/episode_ends, or NAME.zarr.zip",
    ZarrSource,
    takes_files=True,
    takes_urls=True,
)


def _values(rows: Iterator[Any], spec: FeatureSpec) -> Iterator[npt.NDArray[Any] | str]:
    with located(SourceError, feature=spec.name):
        for row in rows:
            yield spec.value_kind.of_foreign(row, spec.dtype)


def _is_buffer(path: Path) -> bool:
    if is_file(path):
        return path.name.endswith(_ZIP)
    return is_directory(path / "data") and is_directory(path / _ENDS)


def _name(path: Path) -> str:
    return path.name.removesuffix(".zip").removesuffix(".zarr") or path.name


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    message = "Zarr buffers need zarr 3, the extra `zarr`: pip install 'zarr>=3.1.3'"
    import_extra("zarr.abc.store", message)  # zarr 2 has no such module
    import zarr
    from zarr.storage import ZipStore

    from seqrecord.formats.sources.zarr.stores import (  # imports zarr
        LocalFiles,
        RemoteStore,
        RemoteZip,
    )

    _register_image_codecs()
    store: Any = None
    try:
        files, is_zip = remote_files(path), is_file(path)
        if files is not None:
            store = RemoteZip(path) if is_zip else RemoteStore(files, path)
        else:
            store = ZipStore(path, mode="r") if is_zip else LocalFiles(path, read_only=True)
        with located(SourceError, file=str(path)):
            if is_zip:
                _check_entries(store.path)
            # Consolidated metadata may be outdated.
            yield zarr.open_group(store, mode="r", use_consolidated=False)
    except SeqRecordError:
        raise
    except Exception as error:  # missing codecs, broken JSON, missing arrays
        raise SourceError(
            "unreadable or damaged Zarr group", file=str(path), got=first_line(error)
        ) from error
    finally:
        with suppress(Exception):  # closing fails if opening a ZIP file failed
            store.close()


class _Directory:
    """The list of entries of a ZIP file, which `ZipFile` reads in one piece."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int = -1, /) -> bytes:
        check_size("directory of a ZIP file", size, _MAX_DIRECTORY_BYTES)
        return self._file.read(size)


def _check_entries(path: Path | BinaryIO) -> None:
    """Check a ZIP file before zarr reads it: each value is unpacked whole.

    Raises `SourceError` for a large directory or value, and for duplicate names, of which zarr
    would read the last one.
    """
    from seqrecord.formats.sources.zarr.stores import limit_of  # imports zarr

    with nullcontext(path) if not isinstance(path, Path) else opened(path) as stream:
        entries = ZipFile(cast("BinaryIO", _Directory(stream))).infolist()
    for entry in entries:
        check_size(f"value {entry.filename}", entry.file_size, limit_of(entry.filename))
    names = Counter(entry.filename for entry in entries)
    if duplicate_names := [name for name, count in names.items() if count > 1]:
        raise SourceError(
            "duplicate names in a ZIP file; unpack it and pack the current files again",
            expected="one entry of each name",
            got=f"{names[duplicate_names[0]]} entries named {duplicate_names[0]}",
        )


def _register_image_codecs() -> None:
    """Register the codecs of imagecodecs, if installed; UMI stores images with them."""
    try:
        from imagecodecs.numcodecs import register_codecs
    except ImportError:
        return
    register_codecs(verbose=False)


def _group(group: Any, name: str) -> Any:
    """Return a subgroup without its own consolidated metadata."""
    import zarr

    subgroup = group[name]
    if getattr(subgroup.metadata, "consolidated_metadata", None) is None:
        return subgroup
    return zarr.open_group(subgroup.store, path=name, mode="r", use_consolidated=False)


def _array(group: Any, name: str) -> Any:
    array = group[name]
    metadata = {**array.metadata.to_dict(), "attributes": None}
    if _PICKLE.search(json.dumps(metadata, default=str)):
        raise SourceError(f"{name} contains pickled objects, which are never loaded")
    chunk_bytes = array.dtype.itemsize * math.prod(array.shards or array.chunks)
    check_size(f"chunks of {name}", chunk_bytes, MAX_CHUNK_BYTES)  # before allocation
    from seqrecord.formats.sources.zarr.bounds import bound_codecs  # imports zarr

    with located(SourceError, feature=name):
        return bound_codecs(array)


def _arrays(group: Any) -> dict[str, Any]:
    """Return the arrays of `data` in the order of names."""
    names = sorted(_group(group, "data").array_keys())
    if not names:
        raise SourceError("replay buffer without data")
    arrays = {name: _array(group, f"data/{name}") for name in names}
    for name, array in arrays.items():
        if not array.shape:
            raise SourceError("array without a time axis", feature=name, expected="[N, …]")
    return arrays


def _episode_ends(group: Any, path: Path) -> npt.NDArray[np.int64]:
    array = _array(group, _ENDS)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.shape[0] > 1 << 28:
        raise SourceError(
            "invalid episode_ends",
            expected="whole numbers [E]",
            got=f"{array.dtype} {list(array.shape)}",
        )
    ends: npt.NDArray[np.int64] = np.fromiter(
        read_rows(array, path, 0, array.shape[0]), np.int64, array.shape[0]
    )
    return ends


def _bounds(ends: npt.NDArray[np.int64], number: object) -> tuple[int, int]:
    """Return the episode's rows, half-open.

    Of two ends that contradict each other nothing tells which is wrong: both episodes are refused.
    """
    if not isinstance(number, int) or not 0 <= number < len(ends):
        raise SourceError("no such episode")
    start, stop = int(ends[number - 1]) if number else 0, int(ends[number])
    highest = int(ends[:number].max(initial=0))
    lowest = int(ends[number + 1 :].min(initial=stop))
    if start != highest or stop <= start or stop > lowest:
        raise SourceError(
            "episode_ends are not ascending",
            expected=f"an end above {highest}, and later ends of at least {stop}",
            got=f"{stop}, after {start}" if lowest >= stop else f"a later end of {lowest}",
        )
    return start, stop


def _infos(path: Path, group: Any) -> list[EpisodeInfo]:
    ends = _episode_ends(group, path)
    episode_values = _per_episode(group, path, len(ends))
    infos = []
    start = 0
    for number, stop in enumerate(map(int, ends)):
        metadata: dict[str, Any] = dict(zip(_PLACE, (path.name, number), strict=True))
        metadata |= {name: values[number].item() for name, values in episode_values.items()}
        infos.append(EpisodeInfo(f"{_name(path)}/{number:06d}", max(0, stop - start), metadata))
        start = stop
    return infos


def _per_episode(group: Any, path: Path, count: int) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of `meta` with a finite number per episode, without `_PLACE`."""
    values_by_name = {}
    for name in sorted(_group(group, "meta").array_keys()):
        array = _array(group, f"meta/{name}")
        is_value = name not in ("episode_ends", *_PLACE)
        if is_value and array.shape == (count,) and array.dtype.kind in "biuf":
            values = np.array(list(read_rows(array, path, 0, count)), array.dtype)
            if np.isfinite(values).all():
                values_by_name[name] = values
    return values_by_name


def _array_places(group: Any) -> list[str]:
    """Return the paths of all arrays below a group, from its current metadata."""
    members = group.members(max_depth=None, use_consolidated_for_children=False)
    return [name for name, item in members if hasattr(item, "chunks")]


def _count_chunks(array: Any, path: Path, unwritten: Unwritten, notes: list[str]) -> None:
    """Count an array's chunks or shards that were never written."""
    from zarr.core.sync import collect_aiterator

    files = array.shards or array.chunks
    grid = [-(-size // length) for size, length in zip(array.shape, files, strict=True)]
    is_remote = remote_files(path) is not None and not is_file(path)
    if (total := math.prod(grid)) > (_MOST_REMOTE if is_remote else _MOST_CHUNKS):
        notes.append(f"missing chunks of {array.path} not counted: {total:,} chunks")
        return
    names = {*collect_aiterator(array.store.list_prefix(f"{array.path}/"))}
    keys = map(array.metadata.encode_chunk_key, product(*map(range, grid)))
    num_missing = total - sum(f"{array.path}/{key}" in names for key in keys)
    fill = array.metadata.fill_value
    fill = 0 if fill is None else fill.item() if hasattr(fill, "item") else fill
    unit = "chunk" if array.shards is None else "shard"
    unwritten.add(array.path, num_missing, total, unit, repr(fill)[:50])
