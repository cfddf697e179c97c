"""Pages that refer to external files: their content and its identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ChecksumError, FormatError, SeqRecordError
from seqrecord.store.format.index import GroupIndex
from seqrecord.store.format.page_kinds import PageCodec
from seqrecord.store.format.pages import DIGEST_BYTES
from seqrecord.store.format.references import (
    Reference,
    named_file,
    portable_bytes,
)
from seqrecord.store.reading.external_files import ExternalFiles, open_external_files
from seqrecord.store.reading.pages import Page
from seqrecord.store.storage.base import Storage, file_url_of
from seqrecord.store.storage.ranges import ByteRange


class ExternalPages:
    """Pages in the record files `paths` that refer to external `files`. Thread-safe.

    `codecs` are those of the pages, by feature.
    `located` adds place, episode and feature to an error about a page.
    """

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        codecs: Mapping[str, PageCodec],
        located: Callable[[Page, SeqRecordError], SeqRecordError],
        files: ExternalFiles | None = None,
    ) -> None:
        self.files = files or open_external_files(storage)
        self._storage, self._paths, self._codecs = storage, paths, codecs
        self._located = located

    def resolve(self, page: Page, data: memoryview, memory: npt.NDArray[np.uint8]) -> memoryview:
        """Read the referenced bytes and return the page with them.

        Uses `memory` if it is large enough.
        """
        reference = page.memo["reference"] = self.parse(page, data)
        packets = self.files.read(reference, memory)
        try:
            return self._codecs[page.feature].resolve(reference, packets)
        except (ChecksumError, FormatError) as error:
            raise error.located(**self.files.place_of(reference)) from error.__cause__

    def parse(self, page: Page, data: memoryview) -> Reference:
        """Parse the stored bytes of a page."""
        codec = self._codecs[page.feature]
        try:
            reference: Reference = codec.reference(data, page.external, page.num_present)
            return reference
        except FormatError as error:
            raise self._located(page, error) from error.__cause__

    def identity(self, page: Page, data: memoryview) -> tuple[bytes, Reference]:
        """Return bytes that identify the content of a page, and its reference."""
        reference = self.parse(page, data)
        file = self.files.file_of(reference.list_id, reference.file)
        return file.root.encode() + portable_bytes(data, file), reference

    def portable_digests(
        self, table: GroupIndex, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        """Return digests of chunks' pages, uint8 [rows, features, 16].

        For pages of references, of their `portable_bytes`; the pages are read for this.
        """

        def content(page: memoryview, _: int) -> bytes:
            return portable_bytes(page, self.files.file_of(*named_file(page)))

        return self._digests(table, rows, content)

    def content_digests(
        self, table: GroupIndex, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        """Return digests of chunks' pages by their content, uint8 [rows, features, 16].

        Pages of references are identified by the sizes and places of their items, which differ with
        the content of video and images. Where all items have one size, as arrays have, by the
        e-tags of their files, or by samples of local files.
        """
        [feature] = table.schema

        def content(page: memoryview, row: int) -> bytes:
            present = table.present(row, int(table.features[0]))
            count = int(table.num_frames[row] if present is None else present.sum())
            reference = self._codecs[feature].reference(page, int(table.external[row]), count)
            evidence: object = None
            if (reference.sizes == reference.sizes[0]).all():
                evidence = self.files.evidence(reference)
            names = [part.name for part in reference.parts]
            extradata = b"" if names else reference.extradata
            tables = reference.offsets, reference.sizes, reference.frames.astype(np.int64)
            text = json.dumps([len(reference.sizes), reference.start, names, evidence])
            return b"".join(
                (text.encode(), *(t.astype("<i8").tobytes() for t in tables), extradata)
            )

        return self._digests(table, rows, content)

    def _digests(
        self,
        table: GroupIndex,
        rows: npt.NDArray[np.int64],
        content: Callable[[memoryview, int], bytes],
    ) -> npt.NDArray[np.uint8]:
        """Return the digests of pages; of references, those of their `content(page, row)`."""
        digests = table.page_digest[rows]
        for number in np.unique(table.file[rows[refers := table.external[rows] > 0]]).tolist():
            places = np.flatnonzero(refers & (table.file[rows] == number))
            starts, lengths = table.offset[rows[places]], table.page_length[rows[places], 0]
            path, total = self._paths[number], int(lengths.sum(dtype=np.int64))
            if (size := self._storage.size(path)) < total:
                raise FormatError(
                    "chunks outside their record file",
                    file=file_url_of(self._storage, path),
                    expected=f"at least {total} bytes",
                    got=f"{size} bytes",
                )
            memory = np.empty(total, np.uint8).data
            buffers = [memory[a:b] for a, b in pairwise(accumulate(lengths.tolist(), initial=0))]
            ends = (starts + lengths).tolist()
            ranges = [ByteRange(a, b) for a, b in zip(starts.tolist(), ends, strict=True)]
            self._storage.read_ranges(path, ranges, buffers)
            for place, page in zip(places.tolist(), buffers, strict=True):
                digest = hashlib.sha256(content(page, int(rows[place]))).digest()[:DIGEST_BYTES]
                digests[place] = np.frombuffer(digest, np.uint8)
        return digests
