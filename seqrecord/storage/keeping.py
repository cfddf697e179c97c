"""A storage of which some files are to stay as they are."""

from __future__ import annotations

from collections.abc import Collection

from seqrecord.errors import DestinationError
from seqrecord.storage.base import CutUpload, Storage, Upload
from seqrecord.storage.wrappers import StorageWrapper

__all__ = ["KeepingStorage"]


class KeepingStorage(StorageWrapper):
    """Neither removes nor writes the files in `kept`: `DestinationError` for whoever asks."""

    def __init__(self, inner: Storage, kept: Collection[str]) -> None:
        super().__init__(inner)
        self.kept = frozenset(kept)

    def create(self, path: str, *, replace: bool = False) -> Upload:
        self._check(path)
        return super().create(path, replace=replace)

    def remove(self, path: str) -> None:
        self._check(path)
        super().remove(path)

    def reopen(self, path: str) -> CutUpload:
        self._check(path)
        return super().reopen(path)

    def local_path(self, path: str) -> str | None:
        return self.inner.local_path(path)

    def _check(self, path: str) -> None:
        if path in self.kept:
            raise DestinationError(
                "a file of the dataset may be neither removed nor replaced",
                file=f"{self.url}/{path}",
            )
