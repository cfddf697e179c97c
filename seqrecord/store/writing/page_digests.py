"""Digests of a chunk's pages, computed beside writing.

SHA-256 takes longer than all other steps of writing a raw page together (1.8 GB/s; CRC32C 15), so
threads hash large pages while the chunk is written and the next one is filled.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ResourceError
from seqrecord.store.checksum import Buffer
from seqrecord.store.format.pages import page_digest
from seqrecord.store.processes.threads import start

_LARGE_BYTES = 1 << 20  # a thread starts in a tenth of the time for its hash


class PageDigests:
    """The digests of pages, each with its validity, bool [num_frames], or `None` for all frames.

    The bytes of pages must not change before `result` returns.
    """

    def __init__(
        self, pages: Iterable[tuple[Buffer, npt.NDArray[np.bool_] | None]], num_frames: int
    ) -> None:
        self._digests: dict[int, bytes] = {}
        self._threads: list[threading.Thread] = []
        for number, (page, present) in enumerate(pages):
            digest = partial(self._compute, number, page, num_frames, present)
            if len(page) < _LARGE_BYTES:
                digest()
                continue
            thread = threading.Thread(target=digest, name="seqrecord-digest", daemon=True)
            try:
                start(thread)
            # Slower, not an error: hashing needs no thread
            # (tests/store/test_groups_written.py::test_digests_without_threads).
            except ResourceError:
                digest()
            else:
                self._threads.append(thread)

    def _compute(
        self, number: int, page: Buffer, num_frames: int, present: npt.NDArray[np.bool_] | None
    ) -> None:
        self._digests[number] = page_digest(page, num_frames, present)

    def result(self) -> npt.NDArray[np.uint8]:
        """Wait for the digests; uint8 [pages, 16]."""
        for thread in self._threads:
            thread.join()
        digests = b"".join(self._digests[number] for number in range(len(self._digests)))
        return np.frombuffer(digests, np.uint8).reshape(len(self._digests), -1)
