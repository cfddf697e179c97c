"""A stub of Google Cloud Storage on 127.0.0.1, sufficient to read and write a dataset.

It implements the XML API, which obstore uses and `gcp-storage-emulator` lacks. Not compared with
the real service.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.kit.services.local_server import Handler, LocalServer

_PAGE = 1000  # objects per page of a listing


@dataclass(frozen=True)
class _Object:
    data: bytes
    generation: int
    tag: str
    """The ETag with its quotes."""
    modified: float = field(default_factory=time.time)


class _Refusal(Exception):  # noqa: N818 - an HTTP response
    def __init__(self, status: int, code: str) -> None:
        self.status, self.code = status, code


class GcsStub(LocalServer):
    """Objects by bucket and name, in memory; `asked` lists the requests.

    `refuse(method, path)` may return status and code of an error response; the path includes its
    query. `page` is the maximum number of objects per page of a listing.
    """

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, _Object]] = {}
        self.asked: list[str] = []
        self.refuse: Callable[[str, str], tuple[int, str] | None] = lambda *_: None
        self.page = _PAGE
        self._uploads: dict[str, tuple[str, str, dict[int, bytes]]] = {}
        self._numbers = itertools.count(1)
        self._guard_objects = threading.Lock()
        super().__init__(_Handler)

    def options(self, endpoint: str | None = None) -> dict[str, Any]:
        """Storage options for it, or for a proxy in front of it."""
        return {"base_url": endpoint or self.endpoint, "bearer_token": "of-nobody"}

    def new_bucket(self) -> str:
        name = f"bucket-{len(self.buckets)}"
        self.buckets[name] = {}
        return name

    def put(
        self, bucket: str, name: str, data: bytes, *, condition: str | None = None, parts: int = 0
    ) -> _Object:
        """Store an object; `parts` is the number of parts of a multipart upload, otherwise 0.

        `condition` is the expected generation, `"0"` for no object.
        """
        with self._guard_objects:
            objects = self._bucket(bucket)
            found = objects[name].generation if name in objects else 0
            if condition is not None and condition != str(found):
                raise _Refusal(412, "PreconditionFailed")
            digest = hashlib.md5(data).hexdigest()
            tag = f'"{digest}-{parts}"' if parts else f'"{digest}"'
            objects[name] = _Object(data, time.time_ns() // 1000 + next(self._numbers), tag)
            return objects[name]

    def find(self, bucket: str, name: str) -> _Object:
        found = self._bucket(bucket).get(name)
        if found is None:
            raise _Refusal(404, "NoSuchKey")
        return found

    def remove(self, bucket: str, name: str) -> None:
        with self._guard_objects:
            self.find(bucket, name)
            del self.buckets[bucket][name]

    def names(self, bucket: str) -> list[str]:
        with self._guard_objects:
            return sorted(self._bucket(bucket))

    def begin(self, bucket: str, name: str) -> str:
        """Begin a multipart upload; returns its id."""
        self._bucket(bucket)
        upload = f"upload-{next(self._numbers)}"
        self._uploads[upload] = (bucket, name, {})
        return upload

    def parts(self, upload: str) -> dict[int, bytes]:
        if upload not in self._uploads:
            raise _Refusal(404, "NoSuchUpload")
        return self._uploads[upload][2]

    def complete(self, upload: str, listed: list[tuple[int, str]]) -> _Object:
        """Complete an upload from the `listed` parts, pairs of number and ETag."""
        parts = self.parts(upload)
        for number, tag in listed:
            if number not in parts or tag.strip('"') != hashlib.md5(parts[number]).hexdigest():
                raise _Refusal(400, "InvalidPart")
        bucket, name, _ = self._uploads.pop(upload)
        data = b"".join(parts[number] for number, _ in listed)
        return self.put(bucket, name, data, parts=len(listed))

    def abort(self, upload: str) -> None:
        self.parts(upload)
        del self._uploads[upload]

    def _bucket(self, bucket: str) -> dict[str, _Object]:
        if bucket not in self.buckets:
            raise _Refusal(404, "NoSuchBucket")
        return self.buckets[bucket]


class _Handler(Handler):
    server: GcsStub
    wbufsize = -1

    def serve(self) -> None:
        body = self.body()
        parts = urlsplit(self.path)
        query = {
            name: values[0]
            for name, values in parse_qs(parts.query, keep_blank_values=True).items()
        }
        self.server.asked.append(f"{self.command} {self.path}")
        try:
            refused = self.server.refuse(self.command, self.path)
            if refused is not None:
                raise _Refusal(*refused)
            bucket, _, name = parts.path[1:].partition("/")
            self._xml(unquote(bucket), unquote(name), query, body)
        except _Refusal as refusal:
            self._error(refusal.status, refusal.code)

    def _xml(self, bucket: str, name: str, query: dict[str, str], body: bytes) -> None:
        upload = query.get("uploadId")
        if not name:
            self.send(200, self._list(bucket, query))
        elif self.command in ("GET", "HEAD"):
            self._media(self.server.find(bucket, name))
        elif self.command == "DELETE":
            if upload is None:
                self.server.remove(bucket, name)
            else:
                self.server.abort(upload)
            self.send(204, b"")
        elif self.command == "PUT" and upload is not None:
            self.server.parts(upload)[int(query["partNumber"])] = body
            self.send(200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        elif self.command == "PUT":
            condition = self.headers.get("x-goog-if-generation-match")
            self.send(200, b"", _named(self.server.put(bucket, name, body, condition=condition)))
        elif upload is None:
            upload = self.server.begin(bucket, name)
            self._answer("InitiateMultipartUploadResult", UploadId=upload, Bucket=bucket, Key=name)
        else:
            found = re.findall(
                r"<Part><ETag>(.*?)</ETag><PartNumber>(\d+)</PartNumber></Part>", body.decode()
            )
            parts = [(int(number), tag.replace("&quot;", '"')) for tag, number in found]
            made = self.server.complete(upload, parts)
            headers = _named(made)
            self._answer("CompleteMultipartUploadResult", headers, Key=name, ETag=made.tag)

    def _list(self, bucket: str, query: dict[str, str]) -> bytes:
        """A listing in the format of S3's version 2."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after, page = query.get("continuation-token", ""), self.server.page
        names = [name for name in self.server.names(bucket) if name.startswith(prefix)]
        entries = sorted({_entry(name, prefix, delimiter) for name in names})
        rest = [name for name in entries if name > after]
        found = [self._listed(bucket, name) for name in rest[:page]]
        if len(rest) > page:
            found.append(f"<NextContinuationToken>{escape(rest[page - 1])}</NextContinuationToken>")
        truncated = f"<IsTruncated>{str(len(rest) > page).lower()}</IsTruncated>"
        inner = truncated + "".join(found)
        return f"<?xml version='1.0'?><ListBucketResult>{inner}</ListBucketResult>".encode()

    def _listed(self, bucket: str, name: str) -> str:
        found = self.server.buckets[bucket].get(name)
        if found is None:
            return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        return (
            f"<Contents><Key>{escape(name)}</Key><Generation>{found.generation}</Generation>"
            f"<LastModified>{_time(found)}</LastModified><ETag>{found.tag}</ETag>"
            f"<Size>{len(found.data)}</Size></Contents>"
        )

    def _media(self, found: _Object) -> None:
        data, headers = found.data, _named(found)
        if self.headers.get("If-Match", found.tag) != found.tag:
            raise _Refusal(412, "PreconditionFailed")
        self.send_range(data, headers)

    def _answer(self, kind: str, headers: Mapping[str, str] = {}, **values: str) -> None:
        inner = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in values.items())
        self.send(200, f"<?xml version='1.0'?><{kind}>{inner}</{kind}>".encode(), headers)

    def _error(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code></Error>"
        headers = {"Content-Type": "application/xml; charset=UTF-8"}
        self.send(status, text.encode(), headers)


def _named(found: _Object) -> dict[str, str]:
    """Headers of an object."""
    return {
        "ETag": found.tag,
        "Last-Modified": email.utils.formatdate(found.modified, usegmt=True),
        "x-goog-hash": f"md5={_md5(found.data)}",
        "x-goog-generation": str(found.generation),
    }


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def _entry(name: str, prefix: str, delimiter: str) -> str:
    """An object's entry in a listing: its name, or its folder below `prefix`."""
    head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
    return prefix + head + found if found else name


def _time(found: _Object) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified))
