"""Files outside of a dataset, to which its pages refer: a protocol of the part `in_place`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from seqrecord.store.areas import EXTERNAL_FILES, load_entry
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.opening import StorageLike

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seqrecord.store.format.index import GroupIndex
    from seqrecord.store.format.references import ExternalFile, Reference
    from seqrecord.store.reading.pages import Page

Originals: TypeAlias = "StorageLike | Mapping[str, StorageLike] | None"
"""Present location of a dataset's external files, or a dict from each old root to its new one."""


class ExternalFiles(Protocol):
    """The external files of a dataset. Thread-safe and picklable.

    Raises `StorageError` for a file that is untrusted or has changed since it was indexed, and
    `NotFoundError` for a missing one.
    """

    def read(self, reference: Reference, memory: npt.NDArray[np.uint8] | None = None) -> memoryview:
        """Read a page's referenced range, after `Reference.offset_table_bytes` bytes of free space.

        Uses `memory` if it is large enough.
        """

    def compare(self, lists: Sequence[str], *, always: bool = False) -> None:
        """Compare the files of lists with their index, and all files if they have been moved.

        Files on remote storages are compared once per process, unless `always`.
        """

    def check(self, reference: Reference) -> None:
        """Check the files of a page as `read` does, without reading them."""

    def states(self, reference: Reference) -> list[list[Any] | None]:
        """Return the present states of a page's files, see `state_of`."""

    def evidence(self, reference: Reference) -> list[list[Any]]:
        """Return what identifies the content of a page's first and last item."""

    def file_of(self, list_id: str, number: int) -> ExternalFile:
        """Return the file with a number in a list."""

    def place_of(self, reference: Reference, offset: int = 0) -> dict[str, Any]:
        """Return external file and offset for errors, given an offset in the resolved page."""

    def all_files(self) -> set[ExternalFile]:
        """Return the files in all lists of the dataset."""

    def are_remote(self) -> bool:
        """Return whether any file is not on a local disk."""

    def close(self) -> None:
        """Close the files; they are reopened on demand."""


class ExternalPages(Protocol):
    """Pages whose bytes are in external files, see `ReferenceKind.pages`. Thread-safe."""

    files: ExternalFiles

    def resolve(self, page: Page, data: memoryview, memory: npt.NDArray[np.uint8]) -> memoryview:
        """Read the referenced bytes, into `memory` if it is large enough, and return the page with
        them.
        """

    def parse(self, page: Page, data: memoryview) -> Reference:
        """Parse the stored bytes of a page."""

    def identity(self, page: Page, data: memoryview) -> tuple[bytes, Reference]:
        """Return bytes that identify the content of a page, and its reference."""

    def portable_digests(
        self, table: GroupIndex, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        """Return the digests of chunks' pages, wherever originals are: uint8 [rows, features,
        16].
        """

    def content_digests(
        self, table: GroupIndex, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.uint8]:
        """Return content digests of chunks' pages, without places and times of files: uint8
        [rows, features, 16].
        """


def open_external_files(
    storage: Storage, originals: Originals = None, options: Mapping[str, Any] | None = None
) -> ExternalFiles:
    """Open the external files of a dataset, given its storage.

    `originals` is their present location, `options` are arguments of `open_storage` for them.
    Raises `MissingPackageError` without the part `in_place`.
    """
    files: ExternalFiles = load_entry(EXTERNAL_FILES)(storage, originals, options)
    return files
