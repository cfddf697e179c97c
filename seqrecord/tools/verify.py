"""verify: reads a whole dataset and collects all its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import (
    ChecksumError,
    FormatError,
    MissingPackageError,
    NotFoundError,
    SeqRecordError,
    StorageError,
    TransientError,
)
from seqrecord.store.format.edits import Edits
from seqrecord.store.format.footer import RECORDS, Footer
from seqrecord.store.format.index import GroupIndex, Index
from seqrecord.store.format.inventory import read_inventories
from seqrecord.store.format.manifest import (
    EDITS,
    KEPT_VERSIONS,
    MANIFEST,
    VERSIONS,
    Dictionary,
    Manifest,
    RecordFile,
    read_manifest,
    version_path,
)
from seqrecord.store.format.statistics_file import read_statistics
from seqrecord.store.processes.machine import usable_cores
from seqrecord.store.reading.chunks import ChunkReader
from seqrecord.store.reading.contents import Contents
from seqrecord.store.reading.dataset import Dataset, DatasetLike, refuse_ignored
from seqrecord.store.reading.external_files import ExternalFiles, open_external_files
from seqrecord.store.reading.index_checks import disagreements
from seqrecord.store.reading.metadata import (
    index_of,
    load_index,
    map_table,
    max_index_bytes,
    read_edits,
    read_footer,
    record_sizes,
)
from seqrecord.store.reading.opening import index_of_original
from seqrecord.store.reading.pages import Page
from seqrecord.store.reading.versions import needed_paths, read_version
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.folder import in_folder
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.parallel import RequestThreads, request_threads
from seqrecord.store.text import counted
from seqrecord.store.units import Progress
from seqrecord.tools.verify_report import VerifyReport, joined_report

_REINDEX = "reindex"  # the command of versions that left out damaged files


def verify(
    dataset: DatasetLike,
    *,
    deep: bool = False,
    check_video: bool = False,
    num_threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Read a whole dataset and report all problems.

    Checks manifest and index, headers and footers of record files and their agreement, checksums of
    all pages and slices, and the state of referenced files. A damaged index is reported, and
    replaced by one built from the record files, so that pages are still checked. Files that only
    kept earlier versions name are checked too, back to the last reindex, if `edit.restore_version`
    has all that it needs; their problems begin with `earlier version`. Memory: the index, the index
    built from the record files, 8 bytes per chunk, and a chunk per thread.

    Nothing is written.

    Args:
        dataset: local path or URL, or an open dataset. The current state of its storage is checked,
            through its cache if it has one; of a joined dataset, all that it consists of.
        deep: also decode every frame of every feature.
        check_video: also decode every frame of video.
        num_threads: default one per core.
        progress: called from the calling thread after every chunk, in bytes of pages.
        storage_options: for the filesystem of the dataset's URL.

    Raises `NotFoundError` if there is no dataset, and `StorageError` if its manifest is unreadable
    or the storage stops answering. All other problems are in the report, in an order independent of
    threads.

    Example:
        report = seqrecord.verify("records/")
        assert report.ok, report.problems
    """
    checks: dict[str, Any] = {"deep": deep, "check_video": check_video}
    checks |= {"num_threads": num_threads, "progress": progress}
    if isinstance(dataset, Dataset):
        refuse_ignored("an open dataset", storage_options=storage_options)
        return _verify_contents(dataset.contents, checks)
    with closing(open_storage(dataset, storage_options)) as storage:
        try:
            return verify_storage(storage, **checks)
        except NotFoundError as error:
            original = index_of_original(dataset, storage_options, error)
    storage, options = LocalStorage(original.folder), {"storage_options": storage_options}
    with closing(open_external_files(storage, options=options)) as externals:
        report = verify_storage(storage, externals, **checks)
    return replace(report, problems=(*report.problems, *original.bad.errors.values()))


def _verify_contents(contents: Contents, checks: Mapping[str, Any]) -> VerifyReport:
    if contents.join is None:
        return verify_storage(contents.storage, contents.externals, **checks)
    return joined_report([_verify_contents(member, checks) for member in contents.join.members])


def verify_storage(
    storage: Storage,
    externals: ExternalFiles | None = None,
    *,
    deep: bool = False,
    check_video: bool = False,
    num_threads: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> VerifyReport:
    """Like `seqrecord.verify`, for the dataset in `storage` with its external files."""
    num_threads = num_threads or usable_cores()
    metadata = _read_metadata(storage, externals)
    if any(isinstance(problem, NotFoundError) for problem in metadata.problems):
        metadata = _read_metadata(storage, externals)  # a writer may have committed meanwhile
    notes = _notes(storage, metadata.record_files)
    with request_threads(num_threads, "verify") as threads:
        run = _Run(storage, externals, threads, 2 * num_threads + 1, deep, check_video, progress)
        index = run.check_current(metadata)
        skipped = _skipped(deep, check_video, index)
        if metadata.manifest is not None:
            skipped += run.check_earlier(metadata.manifest)
    report = VerifyReport(
        url=storage.url,
        deep=deep,
        num_record_files=len(run.files),
        problems=tuple(run.problems),
        notes=tuple(notes),
        version=metadata.version,
        skipped=skipped,
        **run.counts,
    )
    settings: dict[str, Any] = {"deep": deep, "num_threads": num_threads, "progress": progress}
    dictionaries = () if metadata.manifest is None else metadata.manifest.dictionaries
    return _with_dictionaries(report, storage, dictionaries, settings)


def _with_dictionaries(
    report: VerifyReport,
    storage: Storage,
    dictionaries: Sequence[Dictionary],
    settings: Mapping[str, Any],
) -> VerifyReport:
    """Check the values of texts too."""
    reports = [report]
    for dictionary in dictionaries:
        try:
            reports.append(verify_storage(in_folder(storage, dictionary.folder), **settings))
        except SeqRecordError as error:
            reports[0] = replace(reports[0], problems=(*reports[0].problems, error))
    return joined_report(reports) if len(reports) > 1 else reports[0]


class _Run:
    """Checks the versions of a dataset, each record file and page once.

    `files` are the record files that are there, by path.
    """

    def __init__(
        self,
        storage: Storage,
        externals: ExternalFiles | None,
        threads: RequestThreads,
        ahead: int,
        deep: bool,
        check_video: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._storage, self._externals = storage, externals
        self._threads, self._ahead, self._progress = threads, ahead, progress
        self._deep, self._check_video = deep, check_video
        self.problems: list[SeqRecordError] = []
        self.files: dict[str, RecordFile] = {}
        self.counts = Counter(num_chunks=0, num_pages=0, num_frames=0, page_bytes=0)
        self._total_bytes = 0
        self._checked_chunks = _CheckedChunks()
        self._reported_problems: set[tuple[str, str | None]] = set()

    def check_current(self, metadata: _DatasetMetadata) -> Index | None:
        """Check record files and pages of the current version; returns its index."""
        self.problems = metadata.problems
        footers = self._check_files(metadata, metadata.index)
        index = _checked_index(self._storage, metadata, footers)
        if index is not None:
            self._check_chunks(metadata.record_files, index)
        return index

    def check_earlier(self, current: Manifest) -> tuple[str, ...]:
        """Check what only kept earlier versions name; returns the checks that were not made.

        A version without all its files cannot be restored, and is not checked. Neither are
        versions before a reindex: it left out what was damaged in them.
        """
        storage, num_incomplete = self._storage, 0
        try:
            paths = {file.path for place in (RECORDS, EDITS) for file in storage.files(place)}
            version_paths = {file.path for file in storage.files(VERSIONS)}
        except TransientError:
            raise
        except StorageError:  # web servers, or no permission
            return ("earlier versions: their files cannot be listed",)
        contents, command = {_content_of(current)}, current.command
        for commit in current.earlier_commits[:KEPT_VERSIONS]:
            if command.startswith(f"{_REINDEX}("):
                break
            if version_path(commit) not in version_paths:
                continue
            problems: list[SeqRecordError] = []
            with _collecting(problems), suppress(NotFoundError):
                manifest = read_version(storage, commit)
                command = manifest.command
                if _content_of(manifest) in contents:
                    pass
                elif paths.issuperset(needed_paths(manifest)):
                    contents.add(_content_of(manifest))
                    problems += self._check_version(manifest)
                else:
                    num_incomplete += 1
            for problem in problems:
                problem.message = f"earlier version {commit}: {problem.message}"
            self.problems += problems
        if not num_incomplete:
            return ()
        incomplete = counted(num_incomplete, "earlier version")
        return (f"{incomplete}, whose files were removed by `clean`",)

    def _check_version(self, manifest: Manifest) -> list[SeqRecordError]:
        """Check an earlier version; returns the problems that newer versions do not have."""
        metadata, storage = _DatasetMetadata.of(manifest), self._storage
        with _collecting(metadata.problems):
            metadata.edits = read_edits(storage, manifest.edits)
        with _collecting(metadata.problems), suppress(NotFoundError):
            if manifest.statistics is not None:
                read_statistics(storage, manifest.statistics, manifest.schema)
        with _collecting(metadata.problems), suppress(NotFoundError):
            if manifest.inventory is not None:
                read_inventories(storage, manifest.inventory)
        max_bytes = max_index_bytes(manifest)
        for name, file in manifest.index.items():  # of the version just before the current one
            with _collecting(metadata.problems), suppress(NotFoundError):
                map_table(storage, file, max_bytes[name])
        footers = self._check_files(metadata, None)
        index = _checked_index(storage, metadata, footers) if None not in footers else None
        if index is not None and metadata.edits is not None:
            if (actual := index.fingerprint()) != manifest.fingerprint:
                mismatch = FormatError(
                    "the manifest's fingerprint differs from the record files",
                    file=f"{storage.url}/{version_path(manifest.commit)}",
                    expected=manifest.fingerprint,
                    got=actual,
                )
                metadata.problems.append(mismatch)
            current_problems, self.problems = self.problems, metadata.problems
            self._check_chunks(manifest.record_files, index)
            self.problems = current_problems
        identities = {_identity(problem) for problem in self.problems}
        return [problem for problem in metadata.problems if _identity(problem) not in identities]

    def _check_files(self, metadata: _DatasetMetadata, index: Index | None) -> list[Footer | None]:
        """Check record files; returns their footers, `None` for an unreadable one."""
        check = partial(_check_file, self._storage, index)
        results = list(self._threads.map(check, metadata.record_files, self._ahead))
        for file, result in zip(metadata.record_files, results, strict=True):
            metadata.problems += result.problems
            if result.is_there:
                self.files[file.path] = file
        return [result.footer for result in results]

    def _decodes(self, spec: FeatureSpec) -> bool:
        return self._deep or (self._check_video and spec.is_video)

    def _check_chunks(self, files: Sequence[RecordFile], index: Index) -> None:
        """Check the chunks of an index that no other index had."""
        paths = [file.path for file in files]
        is_there = np.array([path in self.files for path in paths], bool)
        selections = [
            is_there[group.file] & ~self._checked_chunks.covers(paths, group)
            for group in index.groups
        ]
        for group, rows in zip(index.groups, selections, strict=True):
            self._total_bytes += int(group.page_length[rows].sum(dtype=np.uint64))
        reader = ChunkReader(
            *(self._storage, paths, index, index.schema),
            externals=self._externals,
            checks_digests=True,
        )
        decoded = frozenset(name for name, spec in index.schema.items() if self._decodes(spec))
        check = partial(_check_chunk, reader, index, decoded)
        reported = self._reported_problems
        reported |= {(e.message, e.file) for e in self.problems if isinstance(e, StorageError)}
        places = _sorted_chunks(index.groups, selections)
        for problems, counts in self._threads.map(check, places, self._ahead):
            for problem in problems:
                # An external file or a missing package affects many pages: one problem.
                fact = problem.message, problem.file
                if fact not in reported:
                    self.problems.append(problem)
                if isinstance(problem, (StorageError, MissingPackageError)):
                    reported.add(fact)
            self.counts.update(counts)
            if self._progress is not None:
                self._progress(Progress(self.counts["page_bytes"], self._total_bytes))
        for group in index.groups:
            self._checked_chunks.add(paths, group)


class _CheckedChunks:
    """Chunks by record file and offset, with the features whose pages were checked."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # of record files
        self._keys: list[tuple[frozenset[int], npt.NDArray[np.uint64]]] = []

    def covers(self, paths: Sequence[str], group: GroupIndex) -> npt.NDArray[np.bool_]:
        """Whether each of a group's chunks had its pages checked, bool [chunks]."""
        features, is_checked = _active_features(group), np.zeros(len(group.file), bool)
        if self._keys:
            keys = self._keys_of(paths, group)
            for checked_features, checked_keys in self._keys:
                if features <= checked_features:
                    is_checked |= np.isin(keys, checked_keys)
        return is_checked

    def add(self, paths: Sequence[str], group: GroupIndex) -> None:
        """Add all chunks of a group."""
        self._keys.append((_active_features(group), self._keys_of(paths, group)))

    def _keys_of(self, paths: Sequence[str], group: GroupIndex) -> npt.NDArray[np.uint64]:
        """A number for each file and offset, uint64 [chunks]; offsets are below 2^44 (16 TiB)."""
        numbers = [self._numbers.setdefault(path, len(self._numbers)) for path in paths]
        high: npt.NDArray[np.uint64] = np.array(numbers, np.uint64)[group.file]
        keys: npt.NDArray[np.uint64] = (high << np.uint64(44)) | group.offset.astype(np.uint64)
        return keys


def _active_features(group: GroupIndex) -> frozenset[int]:
    specs = zip(group.features.tolist(), group.schema.values(), strict=True)
    return frozenset(position for position, spec in specs if not spec.is_dropped)


def _content_of(manifest: Manifest) -> tuple[object, ...]:
    """Equal for versions that need the same files."""
    return manifest.record_files, manifest.edits, manifest.statistics, manifest.inventory


def _identity(problem: SeqRecordError) -> tuple[str, ...]:
    return problem.message, repr(problem.context())


def _skipped(deep: bool, check_video: bool, index: Index | None) -> tuple[str, ...]:
    """List the checks that this run does not make."""
    kinds = "frames except video" if check_video else "frames"
    checks = [] if deep else [f"decoded {kinds}; --deep decodes every frame"]
    if index is not None and any(group.external.any() for group in index.groups):
        checks.append(
            "bytes of original files, unless the index was made with --checksums; their sizes and "
            "times of change were compared"
        )
    return tuple(checks)


@contextmanager
def _collecting(problems: list[SeqRecordError], **place: Any) -> Iterator[None]:
    """Record an error of the block as a problem. A `TransientError` is raised: nothing answers."""
    try:
        yield
    except TransientError:
        raise
    except SeqRecordError as error:
        problems.append(error.located(**place))


@dataclass
class _DatasetMetadata:
    """Readable metadata of a dataset.

    `record_files` are in the order of the index's numbers; `file_id` is empty without a manifest.
    `left_out` are uids of complete episodes that are not in the index. `edits` and `index` are
    `None` if unreadable.
    """

    record_files: Sequence[RecordFile]
    left_out: Sequence[str] = ()
    splits: Sequence[str] = ()
    edits: Edits | None = field(default_factory=Edits)
    index: Index | None = None
    problems: list[SeqRecordError] = field(default_factory=list)
    version: str = ""
    manifest: Manifest | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> _DatasetMetadata:
        """Metadata of a manifest, without edits and index."""
        return cls(
            manifest.record_files,
            manifest.left_out,
            manifest.splits,
            edits=None,
            version=manifest.commit,
            manifest=manifest,
        )


def _read_metadata(storage: Storage, externals: ExternalFiles | None) -> _DatasetMetadata:
    """Read manifest, edits and index; all present record files if the manifest is damaged.

    Raises `NotFoundError` if there is no manifest.
    """
    try:
        manifest = read_manifest(storage)
    except FormatError as error:
        sizes = record_sizes(storage).items()
        return _DatasetMetadata([RecordFile(*item, "") for item in sizes], problems=[error])
    metadata = _DatasetMetadata.of(manifest)
    with _collecting(metadata.problems):
        metadata.edits = read_edits(storage, manifest.edits)
    index_problems: list[SeqRecordError] = []
    max_bytes = max_index_bytes(manifest)
    for name, file in manifest.index.items():
        with _collecting(index_problems):
            map_table(storage, file, max_bytes[name])
    if not index_problems:
        with _collecting(index_problems):
            metadata.index = index = load_index(storage, manifest)
            for number in range(len(index.num_frames)):  # not checked by `load`
                with _collecting(index_problems):
                    index.episode_metadata(number)
            if (actual := index.fingerprint()) != manifest.fingerprint:
                raise FormatError(
                    "the manifest's fingerprint differs from the index",
                    file=f"{storage.url}/{MANIFEST}",
                    expected=manifest.fingerprint,
                    got=actual,
                )
    metadata.problems += index_problems
    with _collecting(metadata.problems):
        if manifest.statistics is not None:
            read_statistics(storage, manifest.statistics, manifest.schema)
    with _collecting(metadata.problems):
        if manifest.copied is not None:
            files = externals or open_external_files(storage)
            files.compare(manifest.copied.lists, always=True)
    with _collecting(metadata.problems):
        if manifest.inventory is not None:
            read_inventories(storage, manifest.inventory)
    return metadata


def _checked_index(
    storage: Storage, metadata: _DatasetMetadata, footers: Sequence[Footer | None]
) -> Index | None:
    """Return the stored index, or one rebuilt from the footers.

    Adds disagreements to the problems.
    """
    paths, index = [file.path for file in metadata.record_files], metadata.index
    footer_of = {path: footer for path, footer in zip(paths, footers, strict=True) if footer}
    try:
        rebuilt_index = index_of(
            footer_of, paths, metadata.left_out, metadata.edits, metadata.splits
        )
    except FormatError as error:  # it names a path, or none
        # If footers are missing, no episode may be complete: the missing footers are the problem.
        if index is None or error.episode or None not in footers:
            error.file = f"{storage.url}/{error.file or RECORDS}"
            metadata.problems.append(error)
        return index
    if index is None:
        return rebuilt_index
    if metadata.edits is not None:  # without edits, deletions are unknown
        urls = [f"{storage.url}/{path}" for path in paths]
        metadata.problems += disagreements(index, rebuilt_index, footers, urls)
    return index


@dataclass
class _FileCheck:
    """Result for one record file. `footer` is `None` if unreadable or of another schema."""

    footer: Footer | None = None
    is_there: bool = False
    problems: list[SeqRecordError] = field(default_factory=list)


def _check_file(storage: Storage, index: Index | None, file: RecordFile) -> _FileCheck:
    """Check a record file's length, header and footer against the manifest."""
    url, check = f"{storage.url}/{file.path}", _FileCheck()
    with _collecting(check.problems):
        size = storage.size(file.path)
        check.is_there = True
        if size != file.size:
            mismatch = FormatError(
                "the length of a record file differs from the manifest",
                file=url,
                expected=f"{file.size} bytes",
                got=f"{size} bytes",
            )
            check.problems.append(mismatch)
        footer = read_footer(storage, file.path)
        if file.file_id not in ("", footer.file_id):
            mismatch = FormatError(
                "record file was replaced (id differs from the manifest)",
                file=url,
                offset=0,
                expected=file.file_id,
                got=footer.file_id,
            )
            check.problems.append(mismatch)
            chunks, gaps = (tuple(r[:0] for r in rows) for rows in (footer.chunks, footer.gaps))
            # Its rows belong to another dataset.
            footer = replace(footer, file_id=file.file_id, episodes=(), chunks=chunks, gaps=gaps)
        if index is not None and not index.schema.continues(footer.schema, edited=True):
            raise FormatError(
                "a record file has another schema",
                file=url,
                expected=index.schema,
                got=footer.schema,
            )
        check.footer = footer
    return check


def _sorted_chunks(
    groups: Sequence[GroupIndex], selections: Sequence[npt.NDArray[np.bool_]]
) -> Iterator[tuple[int, int]]:
    """Yield group and row of the wanted chunks, sorted by file and offset."""
    rows = [np.flatnonzero(selected) for selected in selections]
    number = np.repeat(np.arange(len(groups)), [len(selected) for selected in rows])
    row = np.concatenate(rows)
    file = np.concatenate([g.file[at] for g, at in zip(groups, rows, strict=True)])
    offset = np.concatenate([g.offset[at] for g, at in zip(groups, rows, strict=True)])
    for at in np.lexsort((offset, file)):
        yield int(number[at]), int(row[at])


def _check_chunk(
    reader: ChunkReader, index: Index, decoded_features: Container[str], place: tuple[int, int]
) -> tuple[list[SeqRecordError], dict[str, int]]:
    """Check the checksums of pages and slices, and shapes. Decodes every frame of these features.

    Returns problems and counts.
    """
    chunk, num_frames = reader.chunk_at(*place), 0
    pages = [page for page in reader.pages(chunk) if page.num_present]
    problems: list[SeqRecordError] = []
    intact_pages: list[tuple[Page, memoryview]] = []
    try:
        intact_pages += zip(pages, reader.read(pages), strict=True)
    except ChecksumError:
        # One by one, since several may be damaged.
        for page in pages:
            with _collecting(problems):
                intact_pages += [(page, data) for data in reader.read([page])]
    except TransientError:
        raise
    except SeqRecordError as error:
        problems.append(error.located(episode=index.key(chunk.episode)))
    for page, data in intact_pages:
        if page.sums is not None:
            with _collecting(problems):
                reader.check_slices(page, data)
    for page, data in intact_pages:
        with _collecting(problems):
            if page.feature in decoded_features:
                num_frames += _decode(reader, page, data, problems)
            elif page.max_nbytes is not None:
                reader.shapes(page, data)
    nbytes = sum(page.stop - page.start for page in pages)
    return problems, Counter(
        num_chunks=1, num_pages=len(pages), num_frames=num_frames, page_bytes=nbytes
    )


def _decode(
    reader: ChunkReader, page: Page, data: memoryview, problems: list[SeqRecordError]
) -> int:
    """Decode all frames of a page; returns their number. A missing package is one problem."""
    present_frames = filter(page.has, range(page.chunk.num_frames))
    out = np.empty(0, reader.features[page.feature].dtype)
    for frame, shape in zip(present_frames, reader.shapes(page, data), strict=True):
        if out.shape != shape:
            out = np.empty(shape, out.dtype)
        with _collecting(problems, frame=page.chunk.first_frame + frame):
            try:
                reader.decode(page, data, [frame], [out])
            except MissingPackageError as error:
                problems.append(MissingPackageError(error.message))
                return 0
            reader.value(page, out, frame)
    return page.num_present


def _notes(storage: Storage, files: Sequence[RecordFile]) -> list[str]:
    listed_paths = {file.path for file in files}
    try:
        unfinished_paths = [upload.path for upload in storage.unfinished(RECORDS)]
        stray_paths = [path for path in record_sizes(storage) if path not in listed_paths]
    except TransientError:
        raise
    except StorageError as error:  # web servers, or no permission
        return [f"{storage.url}: cannot list other files: {error.message}"]
    return [
        *(f"{storage.url}/{path}: not part of the dataset" for path in stray_paths),
        *(
            f"{storage.url}/{path}: not finished, or left by an interrupted write"
            for path in unfinished_paths
        ),
    ]
