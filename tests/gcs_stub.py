"""As much of Google Cloud Storage as reading needs, on 127.0.0.1.

Its XML API is what obstore speaks, its JSON API what gcsfs does. `gcp-storage-emulator` serves
neither as they want it. That real GCS does the same was not tried.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

from tests.local_server import LocalServer

__all__ = ["GcsStub"]


class GcsStub(LocalServer):
    """Objects by bucket and name, in memory; `asked` are the requests."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.asked: list[str] = []
        super().__init__(_Handler)

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}"

    def options(self, endpoint: str | None = None) -> dict[str, Any]:
        """Storage options of it, or of a proxy before it."""
        return {"base_url": endpoint or self.endpoint, "skip_signature": True}

    def new_bucket(self) -> str:
        name = f"bucket-{len(self.buckets)}"
        self.buckets[name] = {}
        return name

    def put(self, bucket: str, name: str, data: bytes) -> None:
        self.buckets[bucket][name] = data


class _Handler(BaseHTTPRequestHandler):
    server: GcsStub
    protocol_version = "HTTP/1.1"
    _codes: ClassVar = {404: "NoSuchKey", 416: "InvalidRange", 412: "PreconditionFailed"}

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_HEAD(self) -> None:
        self._serve()

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.server.asked.append(f"{self.command} {self.path}")
        api = re.fullmatch(r"/(download/)?storage/v1/b/([^/]+)(?:/(o)(?:/([^/]+))?)?", parts.path)
        if api is None:
            _, bucket, name = parts.path.split("/", 2)
            self._xml(unquote(bucket), unquote(name))
        else:
            bucket, name = unquote(api[2]), unquote(api[4] or "")
            self._json(api[1] or "", bucket, name, bool(api[3]), query)

    def _xml(self, bucket: str, name: str) -> None:
        if bucket not in self.server.buckets:
            self._error(404, "NoSuchBucket")
            return
        data = self.server.buckets[bucket].get(name)
        self._media(data)

    def _json(self, way: str, bucket: str, name: str, objects: bool, query: dict[str, str]) -> None:
        held = self.server.buckets.get(bucket)
        if held is None:
            self._send(404, json.dumps({"error": {"code": 404, "message": "no bucket"}}).encode())
        elif not objects:
            self._send(200, json.dumps({"kind": "storage#bucket", "name": bucket}).encode())
        elif not name:
            self._send(200, json.dumps(_listed(bucket, held, query)).encode())
        elif name not in held:
            self._send(404, json.dumps({"error": {"code": 404, "message": "not found"}}).encode())
        elif query.get("alt") == "media" or way == "download/":
            self._media(held[name])
        else:
            self._send(200, json.dumps(_described(bucket, name, held[name])).encode())

    def _media(self, data: bytes | None) -> None:
        if data is None:
            self._error(404, "NoSuchKey")
            return
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        headers = {
            "ETag": tag,
            "Last-Modified": email.utils.formatdate(usegmt=True),
            "x-goog-hash": f"md5={base64.b64encode(hashlib.md5(data).digest()).decode()}",
            "x-goog-generation": "1",
        }
        if self.headers.get("If-Match", tag) != tag:
            self._error(412, "PreconditionFailed")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self._send(200, data, headers)
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            self._error(416, "InvalidRange")
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        self._send(206, data[start:stop], headers)

    def _error(self, status: int, code: str) -> None:
        self._send(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _described(bucket: str, name: str, data: bytes) -> dict[str, Any]:
    return {
        "kind": "storage#object",
        "bucket": bucket,
        "name": name,
        "size": str(len(data)),
        "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
        "generation": "1",
        "updated": "2025-01-01T00:00:00.000Z",
        "timeCreated": "2025-01-01T00:00:00.000Z",
    }


def _listed(bucket: str, held: dict[str, bytes], query: dict[str, str]) -> dict[str, Any]:
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    items, prefixes = [], set()
    for name, data in sorted(held.items()):
        if not name.startswith(prefix):
            continue
        rest = name[len(prefix) :]
        if delimiter and delimiter in rest:
            prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
        else:
            items.append(_described(bucket, name, data))
    return {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}
