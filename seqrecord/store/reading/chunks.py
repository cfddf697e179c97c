"""Chunks: positions of their pages, checksums, decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ChecksumError, CodecError, FormatError, SeqRecordError, StorageError
from seqrecord.store.checksum import crc32c
from seqrecord.store.format.index import Index
from seqrecord.store.format.page_kinds import PageCodec, page_kind, reference_kind
from seqrecord.store.format.pages import ALIGNMENT, page_digest, slice_sums
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.reading.pages import Chunk, Page
from seqrecord.store.reading.raw_frames import RawFrames
from seqrecord.store.reading.resizing import resize_frame, temporary_frame
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.storage.base import Storage, state_of, worth_rereading
from seqrecord.store.storage.ranges import ByteRange, coalesce

if TYPE_CHECKING:
    from seqrecord.store.format.references import Reference
    from seqrecord.store.reading.external_files import ExternalFiles, ExternalPages

_UNCHECKED_BYTES = 64 << 20  # for larger chunks, the file's size is checked before allocation
_MAX_READ_BYTES = 16 << 20  # maximum range of one request; pages of a chunk are merged


class ChunkReader:
    """Reads and decodes pages of the selected features. Thread-safe.

    `verify` checks the CRC32C of each page read, `checks_digests` also its digest. Errors name
    file, offset, episode and feature.
    """

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        index: Index,
        features: Schema,
        *,
        verify: bool = True,
        externals: ExternalFiles | None = None,
        checks_digests: bool = False,
    ) -> None:
        self.verify, self._checks_digests = verify, checks_digests
        self._externals = externals
        self.features = features
        self._storage, self._index = storage, index
        local_groups = _local_groups(storage, paths, index)
        self.has_path = all(local_groups[spec.group] for spec in features.values())
        self._paths = paths  # record files
        self._lengths: dict[str, int] = {}  # of record files, if checked
        self._states: dict[str, list[Any] | None] = {}  # of record files on remote storages
        self.kinds = {name: page_kind(spec) for name, spec in features.items()}
        """Page kind by selected feature."""
        self._codecs: dict[str, PageCodec] = {
            n: self.kinds[n].codec(s.stored) for n, s in features.items()
        }
        self.raw = [
            RawFrames(*(storage, paths, index, n, features), verify=verify, is_local=is_local)
            for n, is_local in enumerate(local_groups)
        ]
        """Readers for the raw features of each group."""

    @cached_property
    def external(self) -> ExternalPages:
        """Pages in external files, at the first reference to one."""
        located = partial(_located_by, self.raw)  # does not refer to this object, which has them
        places = self._storage, self._paths, self._codecs, located, self._externals
        pages: ExternalPages = reference_kind().pages(*places)
        return pages

    @cached_property
    def is_local(self) -> bool:
        """Whether everything is on local disks. Requests to other storages are slow."""
        refers = any(group.external.any() for group in self._index.groups)
        return self.has_path and not (refers and self.external.files.are_remote())

    def close(self) -> None:
        """Close external files; they are reopened on demand."""
        if "external" in vars(self):
            self.external.files.close()

    def file_state(self, group: int, row: int) -> list[Any] | None:
        """Return the state of a chunk's record file, see `state_of`; `None` if unavailable.

        Elsewhere than on a local disk, it is asked for once: record files are never changed.
        """
        path = self._paths[int(self._index.groups[group].file[row])]
        if self._storage.local_path(path) is not None:
            return state_of(self._storage, path)
        if path not in self._states:
            self._states[path] = _state_if_known(self._storage, path)
        return self._states[path]

    def chunk_at(self, group: int, row: int, episode: int | None = None) -> Chunk:
        """Return the chunk at a row of a group's table. `episode` avoids a search."""
        table = self._index.groups[group]
        if episode is None:
            episode = table.episode_of(row)
        first_frame, frames = int(table.first_frame[row]), int(table.num_frames[row])
        path = self._paths[int(table.file[row])]
        return Chunk(group, row, episode, first_frame, frames, path, int(table.offset[row]))

    def visible_frames(self, chunk: Chunk) -> range:
        """Return the frames of a chunk in its episode, counted from the chunk's start.

        The first and last chunk of a trimmed episode may have others.
        """
        stop = int(self._index.num_frames[chunk.episode]) - chunk.first_frame
        return range(max(0, -chunk.first_frame), min(chunk.num_frames, stop))

    def cut(self, page: Page, data: memoryview, frames: range) -> memoryview:
        """Return the page of some consecutive frames of a page's chunk, without decoding.

        References must be resolved. Raises `FormatError` for an invalid page.
        """
        mask = np.ones(page.chunk.num_frames, bool) if page.present is None else page.present
        start = int(mask[: frames.start].sum())
        positions = range(start, start + int(mask[frames.start : frames.stop].sum()))
        if len(positions) == page.num_present:
            return data
        try:
            cut = self._codecs[page.feature].cut(data, page.num_present, positions)
        except FormatError as error:
            raise self.located(page, error) from error.__cause__
        return memoryview(cut)

    def pages(self, chunk: Chunk) -> list[Page]:
        """Return the chunk's pages for the selected features, in selection order."""
        table, row, pages = self._index.groups[chunk.group], chunk.row, {}
        lengths = table.page_length[row].tolist()
        starts, sums = self.raw[chunk.group].places(row)
        if starts[-1] - chunk.offset > _UNCHECKED_BYTES:
            self._check_length(chunk, starts[-1])
        sizes = iter(table.largest_frame[row].tolist())  # of the features of variable shape
        for column, (name, spec) in enumerate(table.schema.items()):
            max_nbytes = None if spec.is_fixed else next(sizes)
            if name in self.features:
                pages[name] = Page(
                    feature=name,
                    chunk=chunk,
                    start=starts[column],
                    stop=starts[column] + lengths[column],
                    crc32c=int(table.page_crc32c[row, column]),
                    digest=table.page_digest[row, column].tobytes(),
                    present=table.present(row, int(table.features[column])),
                    max_nbytes=max_nbytes,
                    sums=sums[column] if self.raw[chunk.group].slice_bytes[column] else None,
                    external=int(table.external[row]),
                )
        return [pages[name] for name in self.features if name in pages]

    def _check_length(self, chunk: Chunk, stop: int) -> None:
        """Raise `FormatError` for a chunk outside its file, before memory is allocated."""
        if self._lengths.get(chunk.path, 0) < stop:
            self._lengths[chunk.path] = self._storage.size(chunk.path)
        if (length := self._lengths[chunk.path]) < stop:
            raise FormatError(
                "a chunk outside its record file",
                file=self.raw[chunk.group].place_of(chunk.row)["file"],
                offset=chunk.offset,
                expected=f"at least {stop} bytes",
                got=f"{length} bytes",
            )

    def read(
        self,
        pages: Sequence[Page],
        buffer: npt.NDArray[np.uint8] | None = None,
        *,
        resolve: bool = True,
    ) -> list[memoryview]:
        """Read pages of one record file.

        Adjacent pages are read together, with their padding, in one call to the storage, into
        `buffer` if given. References are resolved: packets are read into the rest of the buffer, or
        into new memory if that is too small, and the result is a page with the packets.
        `resolve=False` returns the references themselves and reads no external files. Raises
        `ChecksumError` for a damaged page.
        """
        if not pages:
            return []
        data = [memoryview(b"")] * len(pages)
        merged = self.reads(pages)
        ends = list(accumulate(merged_range.length for merged_range, _ in merged))
        memory = np.empty(ends[-1], np.uint8) if buffer is None else buffer
        buffers = [memory[a:b].data for a, b in pairwise([0, *ends])]
        for (merged_range, members), part in zip(merged, buffers, strict=True):
            for i in members:
                data[i] = part[
                    pages[i].start - merged_range.start : pages[i].stop - merged_range.start
                ]
        path = pages[0].chunk.path
        self._storage.read_ranges(path, [merged_range for merged_range, _ in merged], buffers)
        if self.verify:
            for page, item in zip(pages, data, strict=True):
                self._verify(page, item)
        spare = memory[ends[-1] :]
        for i, page in enumerate(pages):
            if page.external and resolve:
                memory = spare[: page.external_buffer_bytes]
                data[i] = self.external.resolve(page, data[i], memory)
                spare = spare[page.external_buffer_bytes :]
        return [item.toreadonly() for item in data]

    def reads(self, pages: Sequence[Page]) -> list[tuple[ByteRange, list[int]]]:
        """Return the byte ranges that `read` would read, each with positions in `pages`; no I/O."""
        ranges = [ByteRange(page.start, page.stop) for page in pages]
        return coalesce(ranges, max_gap=ALIGNMENT - 1, max_length=_MAX_READ_BYTES)

    def ranges(self, chunk: Chunk, frames: range) -> list[ByteRange]:
        """Return the bytes of consecutive frames, counted from the chunk's start: all pages of the
        selected features, of raw pages the slices with the frames, and the checksums of slices.
        """
        ranges, sums = [], list[int]()
        for page in self.pages(chunk):
            start, stop, spec = page.start, page.stop, self.features[page.feature].stored
            if page.sums is not None:
                size = self.kinds[page.feature].slice_bytes(spec)
                sums += [page.sums, page.sums + 4 * -(-(stop - start) // size)]
                if page.present is None:
                    start += frames.start * spec.nbytes // size * size
                    stop = min(stop, page.start + -(-frames.stop * spec.nbytes // size) * size)
            ranges.append(ByteRange(start, stop))
        return [*ranges, ByteRange(min(sums), max(sums))] if sums else ranges

    def reference(self, group: int, row: int, feature: str) -> Reference | None:
        """Read and parse the reference of a page; `None` if the page has its frames itself."""
        if not self._index.groups[group].external[row]:
            return None
        [page] = (p for p in self.pages(self.chunk_at(group, row)) if p.feature == feature)
        [data] = self.read([page], resolve=False)
        return self.external.parse(page, data)

    def digests(self, group: int, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return the identities of chunks' pages, wherever originals are: uint8 [rows, features,
        16].
        """
        table = self._index.groups[group]
        refers = table.external[rows].any()
        return self.external.portable_digests(table, rows) if refers else table.page_digest[rows]

    def check_slices(self, page: Page, data: memoryview) -> None:
        """Raise `ChecksumError` unless the stored slice checksums match the raw page's data."""
        assert page.sums is not None, "not a raw page"
        spec = self.features[page.feature].stored
        actual_sums = slice_sums(data, self.kinds[page.feature].slice_bytes(spec))
        sums = np.empty_like(actual_sums)
        path, item = page.chunk.path, ByteRange(page.sums, page.sums + sums.nbytes)
        self._storage.read_ranges(path, [item], [sums.view(np.uint8).data])
        is_wrong = not np.array_equal(sums, actual_sums)
        if is_wrong and worth_rereading(self._storage, path, [item]):
            self._storage.read_ranges(path, [item], [sums.view(np.uint8).data])
        if not np.array_equal(sums, actual_sums):
            raise self.located(page, slice_error(page.sums - page.start, sums, actual_sums))

    def _verify(self, page: Page, data: memoryview) -> None:
        actual, place = crc32c(data), ByteRange(page.start, page.stop)
        if actual != page.crc32c and worth_rereading(self._storage, page.chunk.path, [place]):
            self._storage.read_ranges(page.chunk.path, [place], [data])
            actual = crc32c(data)
        if actual != page.crc32c:
            problem = "a page does not match its checksum"
            raise self.located(page, ChecksumError.of(problem, page.crc32c, actual))
        if self._checks_digests and not has_digest(page, data):
            raise self.located(page, digest_error(page, data))

    def decode(
        self,
        page: Page,
        data: memoryview,
        frames: Sequence[int] | range,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
    ) -> None:
        """Decode frames, counted from the chunk's start, into `out[i]`.

        All must have the feature. A decoder continues from the preceding call for the same page, so
        only one thread at a time may use a page. Raises `FormatError` or `CodecError` with
        file, offset, episode and feature.
        """
        positions: Sequence[int] | range = frames
        if page.present is not None:
            positions = page.positions(frames).tolist()
        try:
            spec, codec = self.features[page.feature], self._codecs[page.feature]
            count = page.num_present
            if spec.stored is spec or self.kinds[page.feature].scales:
                codec.decode_into(data, count, out, positions, page.memo)
                return
            for target, position in zip(out, positions, strict=True):
                shape = codec.shape_of(count, position, data)
                check_largest(page, self.features[page.feature], [shape], is_whole=False)
                frame = temporary_frame(shape, spec.dtype)
                codec.decode_into(data, count, [frame], [position], page.memo)
                resize_frame(spec, frame, target)
        except (CodecError, FormatError) as error:
            raise self.located(page, error) from error.__cause__

    def runs(
        self, page: Page, data: Mapping[str, memoryview], frames: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64] | None:
        """Return the number of each frame's run, see `PageCodec.runs`: int64 [frames].

        `data` has pages by feature. Frames are counted from the chunk's start; those without the
        feature get the run of the preceding frame. `None` if each frame is decoded alone.
        """
        if not self.kinds[page.feature].decodes_in_order:
            return None
        try:
            starts = self._codecs[page.feature].runs(data[page.feature], page.num_present)
        except FormatError as error:
            raise self.located(page, error) from error.__cause__
        places = frames if page.present is None else np.cumsum(page.present)[frames] - 1
        return np.searchsorted(starts, places, side="right")

    def num_decoded(self, page: Page) -> int:
        """Return the number of frames that a page's decoder has decoded, see `PageCodec`."""
        return self._codecs[page.feature].num_decoded(page.memo)

    def value_of(self, page: Page, data: memoryview, frame: int) -> Any:
        """Decode one frame to the user's value. `frame` counts from the chunk's start."""
        shape = self.shapes(page, data)[int(page.positions(frame))]
        array = np.empty(shape, self.features[page.feature].dtype)
        self.decode(page, data, [frame], [array])
        return self.value(page, array, frame)

    def shapes(self, page: Page, data: memoryview) -> list[tuple[int, ...]]:
        """Return the shapes of a page's frames, checked against the index's largest frame."""
        shapes: list[tuple[int, ...]] | None = page.memo.get("shapes")
        if shapes is None and self.features[page.feature].is_fixed:
            shapes = [tuple(n or 0 for n in self.features[page.feature].shape)] * page.num_present
        elif shapes is None:
            try:
                shapes = self._codecs[page.feature].shapes(data, page.num_present)
                check_largest(page, self.features[page.feature], shapes, is_whole=True)
            except FormatError as error:
                raise self.located(page, error) from error.__cause__
        page.memo["shapes"] = shapes
        return shapes

    def value(self, page: Page, array: npt.NDArray[Any], frame: int) -> Any:
        """Convert a frame's array to the user's value: the array, `str` or `bytes`.

        `frame` counts from the chunk's start. Raises `CodecError` for text that is not UTF-8.
        """
        try:
            return self.features[page.feature].value_kind.user_value(array)
        except CodecError as error:
            error.frame = page.chunk.first_frame + frame
            raise self.located(page, error) from error.__cause__

    def located(self, page: Page, error: SeqRecordError) -> SeqRecordError:
        """Add place, episode and feature to an error about a page."""
        raw, reference = self.raw[page.chunk.group], page.memo.get("reference")
        if reference is None:
            return _located_by(self.raw, page, error)
        offset, error.offset = error.offset or 0, None
        place = self.external.files.place_of(reference, offset)
        error.located(**place, feature=page.feature)
        return error.located(**raw.place_of(page.chunk.row))


def _located_by(raw: Sequence[RawFrames], page: Page, error: SeqRecordError) -> SeqRecordError:
    """Add place, episode and feature to an error about the stored bytes of a page."""
    return raw[page.chunk.group].located(error, page.chunk.row, page.feature)


def _local_groups(storage: Storage, paths: Sequence[str], index: Index) -> list[bool]:
    """Return which groups are on a local disk: a joined dataset may be on several."""
    local_groups = []
    for table in index.groups:
        is_local, path = False, paths[int(table.file[0])]
        with suppress(StorageError):  # such as a link out of the dataset, which reads report
            is_local = storage.local_path(path) is not None
        local_groups.append(is_local)
    return local_groups


def check_largest(
    page: Page, spec: FeatureSpec, shapes: Sequence[tuple[int, ...]], *, is_whole: bool
) -> None:
    """Raise `FormatError` for frames larger than their reserved memory."""
    if page.max_nbytes is None or not shapes:
        return
    nbytes = max(map(math.prod, shapes)) * spec.dtype.itemsize
    if nbytes > page.max_nbytes or (is_whole and nbytes != page.max_nbytes):
        raise FormatError(
            "the largest frame of a page differs in size from the index",
            expected=f"{page.max_nbytes} bytes",
            got=f"{nbytes} bytes",
        )


def digest_error(page: Page, data: memoryview) -> ChecksumError:
    """The error of a page whose bytes do not have the digest of the index."""
    return ChecksumError(
        "a page does not match its digest",
        offset=0,
        expected=page.digest.hex(),
        got=page_digest(data, page.chunk.num_frames, page.present).hex(),
    )


def slice_error(
    start: int, sums: npt.NDArray[np.uint32], actual_sums: npt.NDArray[np.uint32]
) -> ChecksumError:
    """The error of the first slice that does not match its checksum, stored from `start` on."""
    number = int(np.argmin(sums == actual_sums))
    message = "the checksums of a page's slices do not match it"
    return ChecksumError.of(
        message, int(actual_sums[number]), int(sums[number]), offset=start + 4 * number
    )


def _state_if_known(storage: Storage, path: str) -> list[Any] | None:
    try:
        return state_of(storage, path)
    except SeqRecordError:  # reading may succeed, for example where HEAD is refused
        return None


def has_digest(page: Page, data: memoryview) -> bool:
    """Return whether a page as stored has the digest of the index. `data` is not resolved."""
    return page_digest(data, page.chunk.num_frames, page.present) == page.digest
