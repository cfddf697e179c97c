"""Merges datasets of one schema: one of all episodes, in the same record files."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from seqrecord.edit.changes import CopyProgress, Opened, read_existing
from seqrecord.edit.episodes import renaming
from seqrecord.edit.features import loses_data
from seqrecord.errors import (
    ConflictError,
    DestinationError,
    FormatError,
    NotFoundError,
    SchemaError,
)
from seqrecord.format.footer import RECORDS
from seqrecord.format.inventory import read_inventories
from seqrecord.format.manifest import CopiedFiles, IndexFile, Manifest, RecordFile
from seqrecord.format.references import EXTERNALS, MAX_LIST_BYTES
from seqrecord.format.text import check_key
from seqrecord.meanings import differences
from seqrecord.reading.metadata import read_footer, record_sizes
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.statistics.by_feature import Statistics
from seqrecord.storage import (
    Storage,
    StorageLike,
    can_copy_on_server,
    copy_on_server,
    open_storage,
    parse_location,
)
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.local_upload import local_errors, make_folder, sync_folder
from seqrecord.storage.ranges import ByteRange
from seqrecord.writing.commits import put_version, rebuilt
from seqrecord.writing.committing import Base, read_base
from seqrecord.writing.edit_files import edit_path, next_number, put_edits
from seqrecord.writing.own_files import SmallFiles, of_merges, put_merge_note, tidy
from seqrecord.writing.stored_schema import is_passthrough
from seqrecord.writing.stored_statistics import merged, stored_statistics

_logger = logging.getLogger("seqrecord")

_SHOWN = 500  # characters of what differs
_COPY_BYTES = 8 << 20
# Another file system, one without links, or a file that has as many as it may.
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclass(frozen=True)
class MergeReport:
    """What a merge has made, or with `dry_run` would make; sizes in bytes."""

    num_episodes: int
    num_frames: int
    num_record_files: int
    linked_bytes: int  # of record files of which no second copy is made
    copied_bytes: int
    server_bytes: int = 0  # of those copied, that do not come through this machine


def merge_datasets(
    sources: Sequence[StorageLike],
    destination: StorageLike,
    *,
    prefixes: Sequence[str] | None = None,
    link: bool = True,
    dry_run: bool = False,
    progress: Callable[[CopyProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> MergeReport:
    """Make a dataset of all episodes of several ones, which stay as they are.

    Record files are hard-linked where they lie on the destination's disk, for they never change;
    elsewhere, and without `link`, they are copied: by the service where source and destination lie
    in one bucket or container, else through this machine. Splits of one name are one split.
    Statistics are those of all together, where each of the datasets has some. Episodes come in the
    order of the ordinals that they were written with. `prefixes`, one for each dataset, come before
    the keys of its episodes: `["", "b/"]`. With `dry_run` all is checked and nothing written.
    `progress` is called from this thread.

    `sources` and `destination` are local paths, URLs or open storages, which are closed in the end;
    `storage_options` are for the filesystems that serve URLs.

    Raises `NotFoundError` where a source is no dataset, `SchemaError` where schemas differ, which
    says how and names the command that packs them into one dataset, `DestinationError` where two of
    them have an episode of one key, or the same record file, and where the destination is not
    empty: what other merges have left there is passed over, and `clean` removes it later. Raises
    `ConflictError` where another writer, such as another merge, has committed there meanwhile; then
    what this one brought stays for `clean`.
    """
    with ExitStack() as stack:
        every = (*sources, destination)
        bare = [_takes_no_options(location) for location in every]
        storages = [
            open_storage(location, None if is_bare and not all(bare) else storage_options)
            for location, is_bare in zip(every, bare, strict=True)
        ]
        for storage in storages:
            stack.callback(storage.close)
        *opened, made = storages
        if not opened:
            raise DestinationError(
                "nothing to merge", file=made.url, expected="at least one dataset"
            )
        named = [""] * len(opened) if prefixes is None else prefixes
        if len(named) != len(opened):
            what = "not one prefix for each dataset"
            raise DestinationError(what, file=made.url, expected=len(opened), got=len(named))
        base = read_base(made)
        _check_empty(made, base)
        if dry_run:
            return _report(_read(opened, made, named)[0], made, link)
        # Whatever is made of a merge that failed, nothing deleted comes back: the note and the
        # copies of edits stay if record files may.
        with SmallFiles(made) as own:
            note = put_merge_note(own)
            parts, statistics = _read(opened, made, named)
            report = _report(parts, made, link)
            own.keep()
            total = report.linked_bytes + report.copied_bytes
            meter = _Meter(total, progress or (lambda _: None))
            _write(parts, named, statistics, own, base, link, meter)
        tidy(made, [note])
        return report


@dataclass
class _Meter:
    total: int
    progress: Callable[[CopyProgress], None]
    done: int = 0

    def add(self, nbytes: int) -> None:
        self.done += nbytes
        self.progress(CopyProgress(self.done, self.total))


def _takes_no_options(location: StorageLike) -> bool:
    if isinstance(location, (str, PathLike)):
        return parse_location(location).protocol == "file"
    return True


def _read(
    opened: Sequence[Storage], made: Storage, prefixes: Sequence[str]
) -> tuple[list[Opened], Statistics | None]:
    """The datasets, which can be merged, and the statistics of all together."""
    parts, known = [], []
    for storage in opened:
        parts.append(read_existing(storage))
        known.append(stored_statistics(storage, parts[-1].manifest))
    _check(parts, prefixes)
    _check_schemas([(p.storage.url, p.manifest.schema) for p in parts], made.url, prefixes)
    together = merged(known)
    lacking = [part.storage.url for part, of in zip(parts, known, strict=True) if of is None]
    if 0 < len(lacking) < len(parts):
        _logger.warning(
            "%s: statistics not stored: %d of %d datasets lack them, as %s; run `seqrecord stats`",
            *(made.url, len(lacking), len(parts), lacking[0]),
        )
    return parts, together


def _report(parts: Sequence[Opened], made: Storage, link: bool) -> MergeReport:
    """What a merge of these makes."""
    linked = copied = server = 0
    for part in parts:
        by_server = can_copy_on_server(part.storage, made)
        for file in part.manifest.record_files:
            if link and _link_source(part.storage, made, file.path) is not None:
                linked += file.size
            else:
                copied += file.size
                server += file.size * by_server
    manifests = [part.manifest for part in parts]
    return MergeReport(
        sum(manifest.num_episodes for manifest in manifests),
        sum(manifest.num_frames for manifest in manifests),
        sum(len(manifest.record_files) for manifest in manifests),
        linked,
        copied,
        server,
    )


def _check_empty(made: Storage, base: Base) -> None:
    """`DestinationError` unless nothing is there but what merges have left."""
    if base.manifest is not None:
        raise DestinationError("not empty", file=made.url, expected="a place without a dataset")
    # Files first: so the note of each that is a merge's is seen.
    paths = [upload.path for upload in made.unfinished(RECORDS)]
    paths += [file.path for file in made.files(RECORDS)]
    if left := sorted(set(paths) - of_merges(made, paths)):
        raise DestinationError(
            "not empty",
            file=made.url,
            expected="a place without a dataset, or what interrupted merges have left",
            got=left[0],
        )


def _renamed(part: Opened, prefix: str) -> dict[int, str]:
    """The new keys of episodes by number; none without a prefix."""
    if not prefix:
        return {}
    return {i: check_key(prefix + key) for i, key in enumerate(part.index.keys.to_pylist())}


def _check(parts: Sequence[Opened], prefixes: Sequence[str]) -> None:
    """`DestinationError` where two have the same record file, or an episode of one key."""
    keys, ids = dict[str, str](), dict[str, str]()
    for part, prefix in zip(parts, prefixes, strict=True):
        url = part.storage.url
        for file in part.manifest.record_files:
            if (other := ids.setdefault(file.file_id, url)) != url:
                raise DestinationError(
                    "the same record file is in two of the datasets", file=other, got=url
                )
        for key in _renamed(part, prefix).values() or part.index.keys.to_pylist():
            if (other := keys.setdefault(key, url)) != url:
                raise DestinationError(
                    "two of the datasets have an episode of one key; give those of one a prefix "
                    "(--prefix), or another name (`seqrecord edit rename`)",
                    file=other,
                    episode=key,
                    got=url,
                )


def _write(
    parts: Sequence[Opened],
    prefixes: Sequence[str],
    statistics: Statistics | None,
    own: SmallFiles,
    base: Base,
    link: bool,
    meter: _Meter,
) -> None:
    """Write the dataset."""
    made = own.storage
    edits: list[IndexFile] = []  # in names that ascend, before the record files
    first = next_number(made)
    for part, prefix in zip(parts, prefixes, strict=True):
        for known in part.manifest.edits:
            data, _ = part.storage.read_whole(known.path, known.size)
            edits.append(own.put(edit_path(first + len(edits), own.writer), data))
        if keys := _renamed(part, prefix):
            edits += put_edits(own, renaming(part, keys), first + len(edits))
    record_files, footers = [], {}
    for part in parts:
        if part.manifest.copied or any(group.external.any() for group in part.index.groups):
            _copy_lists(part.storage, made)  # before the pages that refer to them
        for file in part.manifest.record_files:
            footer = part.footers[file.path]
            ordinal = footer.episodes[0].ordinal if footer.episodes else 0
            transferred = _transfer(part.storage, made, file, ordinal, link, own.writer, meter)
            record_files.append(transferred)
            footers[transferred.path] = footer
    manifests = [part.manifest for part in parts]
    every = replace(
        manifests[0],
        record_files=tuple(record_files),
        next_ordinal=max(manifest.next_ordinal for manifest in manifests),
        left_out=tuple(uid for manifest in manifests for uid in manifest.left_out),
        splits=tuple(dict.fromkeys(name for manifest in manifests for name in manifest.splits)),
        statistics=None,
        inventory=None,
        copied=_copied(manifests),
        edits=tuple(edits),
    )
    sizes = {file.path: file.size for file in record_files}
    version = rebuilt(made, replace(base, manifest=every), footers, sizes)
    _check_there(made, record_files)
    # Of these nothing is needed where the commit is refused; the note is, while record files stay.
    with SmallFiles(made, own.writer) as tables:
        inventories = [
            each
            for part in parts
            if (listed := part.manifest.inventory) is not None
            for each in read_inventories(part.storage, listed)
        ]
        put_version(tables, base, version, statistics, inventories=inventories)


def _copied(manifests: Sequence[Manifest]) -> CopiedFiles | None:
    """The copied files of all datasets. Nothing can be appended to them: there is no content."""
    lists = dict.fromkeys(each for m in manifests if m.copied for each in m.copied.lists)
    return CopiedFiles(tuple(lists)) if lists else None


def _check_there(made: Storage, files: Sequence[RecordFile]) -> None:
    """`DestinationError` unless all files are there: somebody may have removed one."""
    sizes = record_sizes(made)
    for file in files:
        if sizes.get(file.path) != file.size:
            raise DestinationError(
                "a record file is gone since the merge began; nothing is committed",
                file=f"{made.url}/{file.path}",
                expected=file.size,
                got=sizes.get(file.path),
            )


def _copy_lists(source: Storage, made: Storage) -> None:
    for file in source.files(EXTERNALS):
        data, _ = source.read_whole(file.path, MAX_LIST_BYTES)
        with contextlib.suppress(ConflictError):  # it is there already, as it is
            made.put(file.path, data, expected=None)


def _link_source(source: Storage, made: Storage, path: str) -> str | None:
    """Where a record file can be linked from to the destination, if it can."""
    if not isinstance(made, LocalStorage) or (found := source.local_path(path)) is None:
        return None
    there = made.root
    with local_errors(str(there)):
        while not there.exists():
            there = there.parent
        device = there.stat().st_dev
    with local_errors(found):
        return found if Path(found).stat().st_dev == device else None


def _transfer(
    source: Storage,
    made: Storage,
    file: RecordFile,
    ordinal: int,
    link: bool,
    writer: str,
    meter: _Meter,
) -> RecordFile:
    """Link or copy a record file, under a new name of this writer's; the file as it is there.

    `ordinal` is that of its first episode.
    """

    def named() -> RecordFile:
        token = secrets.token_hex(8)
        return replace(file, path=f"{RECORDS}/{ordinal:05d}-{writer}{token}.seqrec")

    transferred = named()
    found = _link_source(source, made, file.path) if link else None
    if found is not None and _link(made, found, transferred.path):
        meter.add(file.size)
        return transferred
    if copy_on_server(source, file.path, made, transferred.path):
        # A service may say that it has begun to copy.
        with contextlib.suppress(FormatError, NotFoundError):
            if read_footer(made, transferred.path).file_id == file.file_id:
                meter.add(file.size)
                return transferred
        made.remove(transferred.path)
    transferred = named()
    upload = made.create(transferred.path)
    try:
        for start in range(0, file.size, _COPY_BYTES):
            item = ByteRange(start, min(start + _COPY_BYTES, file.size))
            buffer = bytearray(item.length)
            source.read_ranges(file.path, [item], [memoryview(buffer)])
            upload.write(buffer)
            meter.add(item.length)
        upload.commit()
    except BaseException:
        upload.abort()
        raise
    return transferred


def _link(made: Storage, found: str, path: str) -> bool:
    """Whether the file could be linked; not where the file system has no link for it."""
    assert isinstance(made, LocalStorage)
    target = made.root / path
    with local_errors(str(target), writing=True):
        make_folder(target.parent)
        try:
            os.link(os.path.realpath(found), target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        sync_folder(target.parent)
    return True


# Schemas


def _check_schemas(
    datasets: Sequence[tuple[str, Schema]], made: str, prefixes: Sequence[str]
) -> None:
    """`SchemaError` unless the datasets, by URL, have one schema; `made` is where they would go.

    It names the command that packs them into one dataset, where their features have the same
    dtypes, shapes, kinds and units, as far as these are said.
    """
    (first_url, first), *others = datasets
    unlike = [(url, schema) for url, schema in others if schema != first]
    if not unlike:
        return
    differences = []
    for url, schema in unlike:
        found = ", ".join(_differences(schema, first, url, first_url))
        differences.append(f"{url}: {found or 'another order of features, or dropped ones'}")
    common = [name for name in first.active if all(name in schema for _, schema in unlike)]
    command = _command(datasets, common, made, prefixes)
    what = "datasets are merged if they have one schema"
    if not common:
        what = "datasets cannot be merged: no feature is in all of them"
    elif all(len(schema.active) == len(common) for _, schema in datasets):
        what += f"; this packs them into one: {command}"
    else:
        what += (
            "; `seqrecord edit` adds and drops features, and this packs those that all have into "
            f"one: {command}"
        )
    raise SchemaError(
        what,
        file=unlike[0][0],
        expected=f"the schema of {first_url}",
        got="; ".join(differences)[:_SHOWN],
    )


def _command(
    datasets: Sequence[tuple[str, Schema]],
    common: Sequence[str],
    made: str,
    prefixes: Sequence[str],
) -> str:
    """Gives keys their prefixes, merges what is as the first dataset, and appends the others."""

    def write(url: str, schema: Schema) -> list[str]:
        chosen = ["--features", ",".join(common)] if len(common) < len(schema.active) else []
        return ["seqrecord", "write", "--src", url, "--dst", made, *chosen]

    (first_url, first), *others = datasets
    renames = [
        ["seqrecord", "edit", "rename", url, "*", f"{prefix}{{}}"]
        for (url, _), prefix in zip(datasets, prefixes, strict=True)
        if prefix
    ]
    commands = [write(first_url, first)]
    if len(common) == len(first.active):
        alike = [url for url, schema in datasets if schema == first]
        others = [(url, schema) for url, schema in others if schema != first]
        commands = [["seqrecord", "merge", *alike, "-o", made]]
    commands += [[*write(url, schema), "--append"] for url, schema in others]
    return " && ".join(map(shlex.join, [*renames, *commands]))


def _differences(schema: Schema, wanted: Schema, url: str, wanted_url: str) -> Iterator[str]:
    """`SchemaError` for a feature that no command takes: of another dtype, shape or value, or of
    which both say another kind or unit."""
    ours, theirs = schema.active, wanted.active
    for name in dict.fromkeys((*theirs, *ours)):
        if name not in ours or name not in theirs:
            yield f"{name} is only {'there' if name in theirs else 'here'}"
            continue
        facts = _facts(ours[name]), _facts(theirs[name])
        why = [what for what in facts[0] if facts[0][what] != facts[1][what]]
        known = differences(ours[name], theirs[name])
        for what in why:
            got, want = (each[what] for each in facts)
            if what == "values" or known.get(what):
                remedy = "; `seqrecord edit describe` corrects a wrong one" if what in known else ""
                raise SchemaError(
                    f"datasets cannot be merged: they have a feature of other {what}{remedy}",
                    file=url,
                    feature=name,
                    expected=f"{want}, as in {wanted_url}",
                    got=got,
                )
        if why:
            says = [f"{what} {facts[0][what]}, not {facts[1][what]}" for what in why]
            if loses_data(theirs[name]) and not is_passthrough(ours[name], theirs[name]):
                says.append("which loses data")
            yield f"{name} ({', '.join(says)})"


def _facts(spec: FeatureSpec) -> dict[str, object]:
    codecs = (dict(config) for config in spec.codec)
    chain = [f"{c.pop('id')}({','.join(f'{k}={v}' for k, v in c.items())})" for c in codecs]
    return {
        "values": str(spec).partition(": ")[2],
        "kind": spec.kind,
        "unit": spec.unit,
        "codec": "+".join(chain) or "raw",
        "group": spec.group,
        "added by": spec.added,
    }
