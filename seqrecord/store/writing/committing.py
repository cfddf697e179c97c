"""The commit: one conditional write of the manifest, its outcome, and the files of one writer.

docs/storage_details.md, "Several writers", has the rules.

Notes are not part of the format. They name record files that left a dataset, and their age is the
time since that commit: a reader that opened the dataset before may still read the files. Only
`clean` reads notes.
"""

from __future__ import annotations

import inspect
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from seqrecord.errors import (
    CommitUnknownError,
    ConflictError,
    FormatError,
    LocationError,
    NotFoundError,
    SeqRecordError,
    StorageError,
    TransientError,
)
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.footer import RECORDS
from seqrecord.store.format.index import Index
from seqrecord.store.format.manifest import (
    EDITS,
    FILE_PATH,
    INDEX,
    KEPT_VERSIONS,
    MAX_COMMAND_LENGTH,
    MAX_EARLIER_COMMITS,
    IndexFile,
    Manifest,
    RecordFile,
    StatisticsFile,
    parse_manifest,
    put_manifest,
    read_manifest,
    read_tagged,
    version_path,
)
from seqrecord.store.format.statistics_file import encode_statistics
from seqrecord.store.reading.metadata import (
    explain_missing_file,
    load_index,
    loose_edits,
    read_edits,
)
from seqrecord.store.reading.versions import read_version
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.storage.base import Storage
from seqrecord.store.text import one_line, repr_of

_NAME = re.compile(
    r"(?:records/\d{5,}-([0-9a-f]{16})[0-9a-f]{16}\.seqrec"
    r"|records/([0-9a-f]{16})(?:[0-9a-f]{16})?\.(?:left|clock)"
    r"|index/([0-9a-f]{16})(?:[0-9a-f]{16})?-[a-z0-9]+\.(?:arrow|json)"
    r"|edits/\d{8,}-([0-9a-f]{16})\.json)"
)
WRITER_DIGITS = 16  # of an id; a commit id begins with its writer's
_LEFT = re.compile(rf"{RECORDS}/[0-9a-f]{{32}}\.left")

_logger = logging.getLogger("seqrecord")


def new_writer_id() -> str:
    """A random id, 64 bits in hex, that a writer's files and episodes share."""
    return secrets.token_hex(WRITER_DIGITS // 2)


def writer_of(path: str) -> str | None:
    """Id of the writer that made a dataset's file, if the path has one."""
    match = _NAME.fullmatch(path)
    return match and match[match.lastindex or 0]


def own_sizes(sizes: Mapping[str, int], writer: str) -> dict[str, int]:
    """A writer's record files: sizes by path."""
    return {path: size for path, size in sizes.items() if writer_of(path) == writer}


class SmallFiles:
    """The small files that one writer writes for a commit, named by its id; a context manager.

    If the block raises, they are removed. After `keep` they are not, because a manifest may name
    them; `forget` ends that. After a `TransientError` only edits are removed, since each removal
    would wait for the storage.
    """

    def __init__(self, storage: Storage, writer: str | None = None) -> None:
        self.storage, self.writer = storage, writer or new_writer_id()
        self.commit_id = self.writer + secrets.token_hex(8)
        self._paths: list[str] = []
        self._is_kept = False

    def put(self, path: str, data: bytes | memoryview) -> IndexFile:
        """Write a file under a new name that no other writer uses."""
        self._paths.append(path)
        return put_file(self.storage, path, data)

    def put_index(self, name: str, data: bytes | memoryview) -> IndexFile:
        """Write a file into the index folder, with a name that ends in `name`."""
        return self.put(f"{INDEX}/{self.commit_id}-{name}", data)

    def put_statistics(self, statistics: Statistics) -> StatisticsFile | None:
        """Write a file of statistics; `None` if it would be too large."""
        if (data := encode_statistics(statistics)) is None:
            return None
        file, lists = self.put_index("statistics.json", data), statistics.values()
        return StatisticsFile(**vars(file), non_finite=any(feature.non_finite for feature in lists))

    def keep(self) -> None:
        """Keep the files from now on: a manifest may name them."""
        self._is_kept = True

    def forget(self, manifest_paths: Iterable[str] = ()) -> None:
        """Stop keeping files: no manifest will ever name them, except those in `manifest_paths`."""
        spared = set(manifest_paths)
        self._paths = [path for path in self._paths if path not in spared]
        self._is_kept = False

    def __enter__(self) -> SmallFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._is_kept:
            return
        if isinstance(error, TransientError):
            self._paths = [path for path in self._paths if path.startswith(f"{EDITS}/")]
        tidy(self.storage, self._paths)


def put_file(storage: Storage, path: str, data: bytes | memoryview) -> IndexFile:
    """Write a file under a new name that no other writer uses."""
    upload = storage.create(path)
    try:
        upload.write(data)
        upload.commit()
    except BaseException:
        upload.abort()
        raise
    return IndexFile(path, len(memoryview(data).cast("B")), f"{crc32c(data):08x}")


def tidy(storage: Storage, paths: Iterable[str]) -> None:
    """Remove unneeded files. A failed removal is logged; a `TransientError` ends the loop."""
    for path in paths:
        try:
            storage.remove(path)
        except StorageError as error:
            _logger.warning("%s/%s: unneeded file cannot be removed: %s", storage.url, path, error)
            if isinstance(error, TransientError):
                return


@dataclass(frozen=True)
class RetiredFiles:
    """A note of record files that left the dataset; `modified` is in seconds since 1970."""

    path: str
    modified: float
    files: frozenset[str]


def is_retired_note(path: str) -> bool:
    """Whether a path is a note of record files that left a dataset."""
    return _LEFT.fullmatch(path) is not None


def put_retired_note(small_files: SmallFiles, files: Sequence[str]) -> None:
    """Write a note of these record files, just before the commit that leaves them out."""
    lines = "".join(f"{line}\n" for line in files)
    small_files.put(f"{RECORDS}/{small_files.commit_id}.left", lines.encode())


def retired_files(storage: Storage) -> list[RetiredFiles]:
    """All notes of files that left the dataset. Lines that are not paths of a dataset are
    ignored."""
    notes = []
    for file in storage.files(RECORDS):
        if is_retired_note(file.path):
            try:
                data, _ = storage.read_whole(file.path, file.size)
            except NotFoundError:  # another clean has removed it
                continue
            lines = data.decode(errors="replace").splitlines()
            paths = frozenset(line for line in lines if FILE_PATH.fullmatch(line))
            notes.append(RetiredFiles(file.path, file.modified, paths))
    return notes


_T = TypeVar("_T")
_P = ParamSpec("_P")

_command: ContextVar[str] = ContextVar("command", default="")
_NOT_RECORDED = {"location", "storage_options", "dry_run", "if_version", "progress", "values"}


@dataclass(frozen=True)
class Base:
    """The dataset at the start of a writer; `manifest` is `None` if there is no dataset.

    A commit is one conditional write: it succeeds if the manifest's tag on the storage is still
    `tag`.
    """

    manifest: Manifest | None
    tag: str | None

    @property
    def files(self) -> dict[str, RecordFile]:
        """The dataset's record files by path, in order."""
        return {file.path: file for file in self.manifest.record_files} if self.manifest else {}

    @property
    def removed(self) -> tuple[str, ...]:
        """Paths of record files to be deleted, never recovered."""
        return self.manifest.removed if self.manifest else ()


def read_base(storage: Storage, *, accept_damaged: bool = False) -> Base:
    """Read the current dataset; with `accept_damaged`, a damaged manifest counts as none.

    A writer calls this first, before it reads anything else.
    """
    try:
        data, tag = read_tagged(storage)
    except NotFoundError:
        return Base(None, None)
    try:
        return Base(parse_manifest(storage, data), tag)
    except FormatError:
        if not accept_damaged:
            raise
        return Base(None, tag)


def loose_files(storage: Storage, base: Base, paths: Iterable[str]) -> list[str]:
    """The record files that the dataset lacks and that a resume or a reindex may recover.

    A writer commits once. Other files of a writer that has committed are duplicates of a job that a
    cluster ran again, unless a note names them: they left the dataset later, for example by damage.
    Files of undone versions are not recovered.
    """
    ignored = {*base.files, *base.removed}
    loose = [path for path in paths if path not in ignored]
    commits = _ids(base.manifest) if base.manifest else ()
    finished_writers = {commit[:WRITER_DIGITS] for commit in commits}
    late = {path for path in loose if writer_of(path) in finished_writers}
    for note in retired_files(storage) if late else ():
        late -= note.files
    undone = frozenset[str]()
    if loose:
        with suppress(FormatError, NotFoundError):  # whoever adds the files reads the edits again
            undone = read_edits(storage, edits_of(storage, base)).left_out
    return [path for path in loose if path not in late and path not in undone]


def edits_of(storage: Storage, base: Base) -> tuple[IndexFile, ...]:
    """The dataset's files of edits; without a manifest, those on the storage that count."""
    return base.manifest.edits if base.manifest is not None else tuple(loose_edits(storage))


def read_dataset(storage: Storage) -> tuple[Base, Manifest]:
    """Read the current dataset. Raises `NotFoundError` if there is none."""
    data, tag = read_tagged(storage)
    manifest = parse_manifest(storage, data)
    return Base(manifest, tag), manifest


def read_consistent(storage: Storage, look: Callable[[Base, Manifest], _T]) -> _T:
    """Return `look(base, manifest)`, a reader of the files that the manifest names.

    If a file is missing and another writer has committed meanwhile, which removes old tables, read
    the manifest again and call `look` a second time. Raises `NotFoundError` if a file is missing
    then too.
    """
    base, manifest = read_dataset(storage)
    try:
        return look(base, manifest)
    except NotFoundError:
        new_base, manifest = read_dataset(storage)
        if new_base.tag == base.tag:
            raise
    with explain_missing_file():
        return look(new_base, manifest)


def read_indexed(storage: Storage) -> tuple[Base, Manifest, Index]:
    """Read the dataset and its index. Raises `NotFoundError` if there is none."""
    return read_consistent(
        storage, lambda base, manifest: (base, manifest, load_index(storage, manifest))
    )


def recorded(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Decorate a function that edits a dataset: its commits store the call, without location."""
    signature = inspect.signature(function)
    required = (
        name for name, one in signature.parameters.items() if one.default is inspect.Parameter.empty
    )
    usage = f"{function.__name__}({', '.join(required)}, …)"

    @wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _T:
        try:
            bound_arguments = signature.bind(*args, **options).arguments
        except TypeError as error:
            raise TypeError(f"{usage}: {error}") from None
        _refuse_open_dataset(next(iter(bound_arguments.values())))
        arguments = {
            name: getattr(value, "__name__", None) or repr_of(value)
            for name, value in bound_arguments.items()
            if name not in _NOT_RECORDED and value is not signature.parameters[name].default
        }
        text = ", ".join(f"{name}={value}" for name, value in arguments.items())
        # Of arrays and tables, whose `repr` has line breaks, too.
        command = one_line(f"{function.__name__}({text})")[:MAX_COMMAND_LENGTH]
        token = _command.set(_command.get() or command)  # the outermost call
        try:
            return function(*args, **options)
        finally:
            _command.reset(token)

    return call


def _refuse_open_dataset(location: object) -> None:
    """Raise `LocationError` for an open dataset: an edit changes what is stored at a place."""
    if (contents := getattr(location, "contents", None)) is None:
        return
    problem = "an edit needs the place of a dataset, not an open one"
    if contents.join is not None:
        problem = (
            "a joined dataset is a view of several, which cannot be edited: edit one of them, or "
            "store features of a companion with `seqrecord edit add PATH NAME --from COMPANION`"
        )
    url = contents.storage.url
    raise LocationError(problem, file=url, expected=url, got="a Dataset")


def commit(small_files: SmallFiles, base: Base, manifest: Manifest) -> Manifest:
    """Replace the manifest of `base`; returns the new manifest with its commit id.

    `small_files` are those of this commit. They are kept if the manifest may name them.

    Raises `ConflictError` if another writer committed first for certain, and `CommitUnknownError`
    if the outcome is unknown. After any other error the commit has failed; after an interrupt the
    outcome is unknown.
    """
    storage, previous = small_files.storage, base.manifest
    small_paths = {file.path for file in manifest.small_files}
    manifest = replace(
        manifest,
        command=_command.get(),
        commit=small_files.commit_id,
        earlier_commits=_ids(previous)[:MAX_EARLIER_COMMITS] if previous else (),
        superseded=tuple(
            file.path
            for file in (previous.small_files if previous else ())
            if file.path.startswith(f"{INDEX}/") and file.path not in small_paths
        ),
    )
    if previous is not None:
        _keep_version(storage, previous)
    small_files.keep()
    try:
        put_manifest(storage, manifest, expected=base.tag)
    except (ConflictError, TransientError) as error:
        _resolve_outcome(small_files, base, manifest, error)
    except SeqRecordError:
        small_files.forget()
        raise
    # Tables that only the old manifest names are kept until the next commit, for readers that have
    # just read it.
    superseded = previous.superseded if previous else ()
    unneeded = [path for path in superseded if path.endswith(".arrow")]
    tidy(storage, [*unneeded, *_forgotten_files(storage, manifest, small_paths)])
    return manifest


def _forgotten_files(
    storage: Storage, manifest: Manifest, small_paths: Collection[str]
) -> list[str]:
    """Files of the version that is no longer kept: its manifest, statistics and inventory.

    Statistics and inventories are kept with the versions that name them: nothing rebuilds them, in
    contrast to tables. The oldest kept version lists files that only older versions have.
    """
    forgotten = manifest.earlier_commits[KEPT_VERSIONS:][:1]
    if not forgotten:
        return []
    paths = [version_path(forgotten[0])]
    with suppress(SeqRecordError):  # else `clean` removes them
        oldest_manifest = read_version(storage, manifest.earlier_commits[KEPT_VERSIONS - 1])
        paths += [
            path
            for path in oldest_manifest.superseded
            if path.endswith(".json") and path not in small_paths
        ]
    return paths


def _keep_version(storage: Storage, manifest: Manifest) -> None:
    """Copy a manifest into the kept versions before it is replaced, unless it is there already."""
    with suppress(ConflictError):
        storage.put(version_path(manifest.commit), manifest.encode(), expected=None)


def _resolve_outcome(
    small_files: SmallFiles, base: Base, manifest: Manifest, error: ConflictError | TransientError
) -> None:
    """Read the manifest to find the outcome of a commit; raises unless the commit succeeded."""
    storage = small_files.storage
    try:
        current: Manifest | None = read_manifest(storage)
    except SeqRecordError:
        current = None
    if current is not None and manifest.commit in _ids(current):
        _logger.warning("%s: committed; the answer was lost: %s", storage.url, error.message)
        return
    # A refusal is certain. A lost answer is settled by the condition, on storages with conditions.
    is_refused = isinstance(error, ConflictError)
    if current is not None and (
        (is_refused and base.manifest is not None and current.commit == base.manifest.commit)
        or ((is_refused or storage.has_conditions) and _is_after(current, base))
    ):
        small_files.forget(file.path for file in current.small_files)
        raise ConflictError(
            "another writer committed first; nothing was changed", file=storage.url
        ) from error
    raise CommitUnknownError(
        f"outcome of the commit is unknown ({error.message}); it may still succeed. It did if "
        f"`seqrecord info --versions` lists version {manifest.commit} (`info --json` lists the "
        "last 100 ids). If not, wait some minutes, check again, and repeat the command"
        + (f", an edit with --if-version {base.manifest.commit}" if base.manifest else "")
        + "; the files of this attempt stay until `seqrecord clean` removes them",
        file=storage.url,
        expected=f"commit {manifest.commit}",
        got=current and f"commit {current.commit}",
    ) from error


def _is_after(manifest: Manifest, base: Base) -> bool:
    """Whether a manifest came after the base, with all commits between them listed."""
    if base.manifest is None:
        return len(manifest.earlier_commits) < MAX_EARLIER_COMMITS
    return base.manifest.commit in manifest.earlier_commits


def _ids(manifest: Manifest) -> tuple[str, ...]:
    return manifest.commit, *manifest.earlier_commits
