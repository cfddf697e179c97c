"""Uploads to Azure: blocks that a few threads send, and a list of them that makes them a blob.

Uncommitted blocks can neither be seen nor read, so what is to outlast a kill is committed now and
then under the final name, with metadata that says it is unfinished; whoever lists or measures files
passes it over. The notes of its checkpoints are blocks at its end, written with it in one step. The
last commit is the list of all data blocks, without notes and mark: nothing is sent or copied twice.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from seqrecord.checksum import Buffer
from seqrecord.errors import DestinationError, NotFoundError, StorageError
from seqrecord.storage.azure.account import PARTIAL
from seqrecord.storage.failures import call
from seqrecord.storage.retrying import Retrier
from seqrecord.storage.stopping import unwanted_if

__all__ = ["BLOCK_BYTES", "IN_FLIGHT", "LEAVE_SECONDS", "SAVE_SECONDS", "AzureUpload"]

BLOCK_BYTES = 8 << 20
IN_FLIGHT = 4  # blocks of one upload; with the one being filled, 40 MiB of memory
SAVE_SECONDS = 5.0  # checkpoints sooner after the last that was kept are kept with the next
LEAVE_SECONDS = 5.0  # the deadline of what is kept at the end

_OWNER = "seqrecord_upload"
_GROW_AFTER = 8192  # blocks: Azure takes 50,000 a blob, so they double after each so many
_MAX_BLOCK_BYTES = 256 << 20

_T = TypeVar("_T")


class AzureUpload:
    """Sends blocks of 8 MiB, four at a time, from threads that end with the upload.

    `client` is a `BlobClient`. `check` is called before anything is sent: it raises if the writer's
    claim is gone. A replaced file stays as it is until the commit, so `checkpoint` does nothing
    then. Blocks of an upload that was never kept take room, invisibly, until Azure drops them after
    a week.
    """

    def __init__(
        self,
        path: str,
        client: Any,
        shown: str,
        *,
        replace: bool,
        retrier: Retrier,
        check: Callable[[], None],
        ended: Callable[[AzureUpload], None],
    ) -> None:
        self.path = path
        self._client = client
        self._shown = shown
        self._replace = replace
        self._retrier = retrier
        self._check = check
        self._ended = ended
        self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="seqrecord-upload")
        self._sending: deque[Future[None]] = deque()
        self._id = secrets.token_hex(8)  # in the names of blocks: no other upload has the same
        self._blocks: list[_Block] = []
        self._note_blocks: list[_Block] = []
        self._notes: list[bytes] = []  # lines of checkpoints that are not kept yet
        self._tail = bytearray()
        self._size = 0
        self._commits = 0
        self._names = 0
        self._etag: str | None = None  # of what is kept
        self._saved_at = time.monotonic()
        self._open = True
        self._failure: StorageError | None = None

    @classmethod
    def reopened(cls, path: str, client: Any, shown: str, **more: Any) -> AzureUpload:
        """An upload that goes on with what a killed one has kept. Nothing of it is sent again."""
        upload = cls(path, client, shown, replace=False, **more)
        try:
            upload._take_up()
        except BaseException:
            upload._end()
            raise
        return upload

    def checkpoints(self) -> list[tuple[int, bytes]]:
        """Those that are kept, read from the blob."""
        start = sum(block.size for block in self._blocks)
        length = sum(block.size for block in self._note_blocks)
        return list(_parse_notes(self._download(start, length))) if length else []

    def write(self, data: Buffer) -> None:
        self._check_open()
        view = memoryview(data).cast("B")
        while view:
            room = self._block_bytes() - len(self._tail)
            self._tail += view[:room]
            self._size += min(room, len(view))
            view = view[room:]
            if len(self._tail) == self._block_bytes():
                self._send_tail()

    def tell(self) -> int:
        return self._size

    def checkpoint(self, note: bytes) -> None:
        self._check_open()
        if self._replace:
            return
        line = json.dumps({"size": self._size, "note": note.hex()}).encode() + b"\n"
        self._notes.append(line)
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()

    def rewind(self, offset: int) -> bool:
        if not self._open:
            return False
        if not 0 <= offset <= self._size:
            raise ValueError(f"cannot rewind {self._size} bytes to {offset}")
        start = self._size - len(self._tail)
        if offset < start:
            if self._replace:
                return False
            kept, start = 0, 0
            for block in self._blocks:
                if start + block.size > offset:
                    break
                kept, start = kept + 1, start + block.size
            head = b""
            if start < offset:
                if any(not block.kept for block in self._blocks[: kept + 1]):
                    self._save()  # what is not kept cannot be read
                head = self._download(start, offset - start)
            self._tail, self._blocks = bytearray(head), self._blocks[:kept]
        del self._tail[offset - start :]
        self._size = offset
        self._notes = [line for line in self._notes if _size_of(line) <= offset]
        return True

    def commit(self) -> None:
        self._check_open()
        self._flush()
        self._commit(self._blocks, partial=None)
        self._etag = None
        self._end()

    def abort(self) -> None:
        self._end()
        etag, self._etag = self._etag, None
        if etag is not None:
            with suppress(NotFoundError):
                self._request(self._client.delete_blob, **_if_unchanged(etag))

    def leave(self) -> None:
        """Stop as a kill would, but keep the checkpoints so far if that goes well at once."""
        self._retrier = Retrier(deadline=LEAVE_SECONDS)
        try:
            if self._open and self._notes:
                with suppress(StorageError):
                    self._save()
        finally:
            self._end()

    def _take_up(self) -> None:
        properties = self._request(self._client.get_blob_properties)
        if PARTIAL not in properties.metadata:
            raise NotFoundError("no interrupted upload", file=self._shown)
        committed, _ = self._request(self._client.get_block_list, "committed")
        for item in committed:
            block = _Block(item.id, item.size, kept=True)
            (self._note_blocks if block.is_note else self._blocks).append(block)
        self._size = sum(block.size for block in self._blocks)
        # From here on the etag is another: a writer that is not dead after all cannot go on.
        metadata = {**properties.metadata, _OWNER: self._id}
        self._etag = self._changed(
            lambda: self._client.set_blob_metadata(metadata, **_if_unchanged(properties.etag)),
            owner=self._id,
        )

    def _save(self) -> None:
        """Commit what there is as unfinished."""
        self._flush()  # a commit drops blocks that have been sent and are not in its list
        notes = list(self._note_blocks)
        if self._notes:
            notes.append(self._named("n", sum(map(len, self._notes))))
            self._stage(notes[-1], b"".join(self._notes))
        self._commit([*self._blocks, *notes], partial=self._size)
        self._note_blocks, self._notes = notes, []
        self._saved_at = time.monotonic()

    def _commit(self, blocks: Sequence[_Block], *, partial: int | None) -> None:
        from azure.storage.blob import BlobBlock

        self._commits += 1
        owner = f"{self._id}-{self._commits}"
        metadata = {_OWNER: owner} | ({} if partial is None else {PARTIAL: str(partial)})
        listed = [BlobBlock(block.id) for block in blocks]
        if self._etag is not None:
            condition = _if_unchanged(self._etag)
        else:
            condition = {} if self._replace else _if_missing()
        with self._ending():
            self._check()
            self._etag = self._changed(
                lambda: self._client.commit_block_list(listed, metadata=metadata, **condition),
                owner=owner,
            )
        for block in blocks:
            block.kept = True

    def _changed(self, change: Callable[[], dict[str, Any]], *, owner: str) -> str:
        """The etag after a conditional change, which may have gone through before it was repeated.

        `DestinationError` if something else is there.
        """

        def attempt() -> str | None:
            from azure.core.exceptions import HttpResponseError

            try:
                return str(change()["etag"])
            except HttpResponseError as error:
                if error.status_code not in (409, 412):
                    raise
                return None

        etag = self._request(attempt)
        if etag is not None:
            return etag
        properties = self._request(self._client.get_blob_properties)
        if properties.metadata.get(_OWNER) == owner:
            return str(properties.etag)
        if self._etag is None:
            raise DestinationError("the file exists already", file=self._shown)
        raise DestinationError("another writer has changed this file", file=self._shown)

    def _send_tail(self) -> None:
        if not self._tail:
            return
        with self._ending():
            self._check()
            while len(self._sending) >= IN_FLIGHT or (self._sending and self._sending[0].done()):
                self._sending.popleft().result()
        block = self._named("d", len(self._tail))
        data, self._tail = bytes(self._tail), bytearray()
        self._sending.append(self._pool.submit(self._stage, block, data))
        self._blocks.append(block)

    def _flush(self) -> None:
        """Wait until all has been sent."""
        self._send_tail()
        with self._ending():
            while self._sending:
                self._sending.popleft().result()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """A failure leaves the upload as a kill would: a block is missing, or the claim is gone."""
        try:
            yield
        except BaseException as error:
            self._failure = error if isinstance(error, StorageError) else None
            self._end()
            raise

    def _stage(self, block: _Block, data: bytes) -> None:
        # The same bytes under the same name: sent twice, they count once.
        with unwanted_if(lambda: not self._open):
            self._request(self._client.stage_block, block.id, data, length=len(data))

    def _download(self, start: int, length: int) -> bytes:
        def download() -> bytes:
            data: bytes = self._client.download_blob(start, length).readall()
            return data

        return self._request(download)

    def _request(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        return self._retrier.call(
            lambda: call(self._shown, function, *args, **kwargs), file=self._shown
        )

    def _named(self, kind: str, size: int) -> _Block:
        self._names += 1
        name = f"{kind}-{self._id}-{self._names:08d}".encode()
        return _Block(base64.b64encode(name).decode(), size)

    def _block_bytes(self) -> int:
        return min(_MAX_BLOCK_BYTES, BLOCK_BYTES << (len(self._blocks) // _GROW_AFTER))

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._open:
            raise StorageError("the upload is closed", file=self._shown)

    def _end(self) -> None:
        self._open = False
        self._pool.shutdown(cancel_futures=True)
        self._sending.clear()
        self._ended(self)


@dataclass
class _Block:
    """A block that is sent or being sent; `kept` if the blob as it is there holds it."""

    id: str
    size: int
    kept: bool = False

    @property
    def is_note(self) -> bool:
        return base64.b64decode(self.id).startswith(b"n")


def _if_missing() -> dict[str, Any]:
    from azure.core import MatchConditions

    return {"match_condition": MatchConditions.IfMissing}


def _if_unchanged(etag: str) -> dict[str, Any]:
    from azure.core import MatchConditions

    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}


def _size_of(line: bytes) -> int:
    return int(json.loads(line)["size"])


def _parse_notes(data: bytes) -> Iterator[tuple[int, bytes]]:
    for line in data.splitlines():
        entry = json.loads(line)
        yield int(entry["size"]), bytes.fromhex(entry["note"])
