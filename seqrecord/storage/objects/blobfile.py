"""Blobs read with blobfile, through its public functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seqrecord.storage.ranges import MAX_REQUEST_BYTES

__all__ = ["Blobfiles"]


class Blobfiles:
    """Reads Azure accounts as a filesystem of fsspec does; paths are ACCOUNT/CONTAINER/PATH.

    blobfile has its own credentials: `AZURE_STORAGE_KEY`, a service principal, `az login`. It
    repeats nothing here. `pool` makes a pool of urllib3, for whom its own will not do.
    """

    def __init__(self, pool: Callable[[], Any] | None) -> None:
        import blobfile

        self._context = blobfile.create_context(
            retry_limit=0,
            save_access_token_to_disk=False,
            log_callback=lambda _: None,
            get_http_pool=pool,
        )

    def info(self, path: str) -> dict[str, Any]:
        return {"size": self._context.stat(f"az://{path}").size}

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        if end - start > MAX_REQUEST_BYTES:  # of a whole file
            end = min(end, self.info(path)["size"])
        # Told where the file ends, blobfile does not ask; it would read no further than that.
        with self._context.BlobFile(
            f"az://{path}", "rb", streaming=True, file_size=end, buffer_size=max(1, end - start)
        ) as file:
            file.seek(start)
            return b"".join(iter(lambda: file.read(end - start), b""))
