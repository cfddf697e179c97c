"""Puts a small file in place once, however often the request is sent."""

from __future__ import annotations

from seqrecord.errors import ConflictError, NotFoundError, TransientError
from seqrecord.storage.base import MAX_PUT_BYTES, Storage

__all__ = ["put_once"]


def put_once(storage: Storage, path: str, data: bytes, *, expected: str | None) -> None:
    """One attempt of `storage.put`; the file that is there then tells whether it succeeded.

    After a refusal or an error that may pass, the file is read: if it holds `data`, the put
    succeeded and only its answer was lost. So no other file may ever hold the same bytes. If it is
    still the one of the tag `expected`, the error is raised again, for another attempt. Otherwise
    another writer was there first: `ConflictError`.
    """
    try:
        storage.put(path, data, expected=expected)
    except (ConflictError, TransientError) as error:
        failure = error
    else:
        return
    try:
        found, tag = storage.read_whole(path, MAX_PUT_BYTES)
    except NotFoundError:
        found, tag = b"", None
    if tag is not None and found == data:
        return
    if tag == expected:
        raise failure
    raise ConflictError("another writer replaced it meanwhile", file=f"{storage.url}/{path}")
