"""A stub of the Hugging Face Hub, sufficient to read and push a dataset.

::

    with HubStub(folder) as hub:            # serves the files of a folder as they are now
        seqrecord.open(hub.url, storage_options={"endpoint": hub.endpoint})
        # or with HF_ENDPOINT=hub.endpoint in the environment
        hub.counts                          # requests by kind: api, resolve, store
        hub.commit()                        # commits the current files to main

Files in LFS, selected by the endings in `LARGE`, are on another server with a port of its own
(`hub.store`): the Hub redirects there, to an address that expires after `signed_seconds`. Uploads
go there too, by the batch API of LFS: not by Xet, whose client cannot use a stub
(`HF_HUB_DISABLE_XET=1`). Requests and headers are as in huggingface_hub 2.4.0. Not compared with
the real Hub.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.kit.services.local_server import Handler, LocalServer

if TYPE_CHECKING:
    import pytest


def without_login(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Ignore the user's login and caches on this machine, and disable prompts for a login."""
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    patch.setenv("SEQRECORD_HOME", str(folder / "home"))
    patch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "token"))
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        patch.delenv(name, raising=False)


LARGE = (".mp4", ".mkv", ".parquet", ".arrow", ".seqrec")
"""Endings of files in LFS, as in the `.gitattributes` of LeRobot's datasets."""

_KEPT = 8 << 20  # maximum bytes of a file kept in memory, so that commits do not change
_PAGE = "<!DOCTYPE html><html><body>Log in</body></html>"


@dataclass(frozen=True)
class HubStubFile:
    """A file of a commit; `oid` is its SHA-256 in LFS, otherwise its git id."""

    path: Path
    size: int
    oid: str
    is_large: bool
    data: bytes | None

    def read(self) -> bytes:
        return self.path.read_bytes() if self.data is None else self.data


class HubStub(LocalServer):
    """Serves `folder` as the dataset repository `repo`; `token`, if given, is required.

    With `exists=False` a client must create the repository.
    """

    # Counters
    sent = 0  # bytes of files sent
    early = 0  # requests before the end of a requested delay, except the first of each
    is_private = False
    # Behaviour
    limit: tuple[int, float] | None = None  # (n, s): 429 after n requests in s seconds
    limit_headers: tuple[str, ...] = ("RateLimit", "Retry-After")  # headers of status 429
    busy = 0  # number of following reads of files answered by 503
    html = False  # answer all requests with an HTML page and status 200
    gated = False  # refuse access, as if the terms were not accepted
    page = 1000  # entries per page of a listing
    signed_seconds = 3600.0  # validity of the store's addresses
    mirrors = False  # serve files in LFS from the Hub itself, as some mirrors do
    cached = False  # redirect small files to another path of the Hub, as the real one does
    most_uploads: int | None = None  # uploads accepted by the store; later ones are refused
    lost = 0  # number of following commits answered by 504 after they are made
    before_commit: Callable[[], object] | None = None  # called before the next commit is made
    ignored: tuple[str, ...] = ()  # paths excluded by a `.gitignore`

    def __init__(
        self,
        folder: Path,
        repo: str = "org/name",
        *,
        token: str | None = None,
        exists: bool = True,
    ) -> None:
        self.folder, self.repo, self.token, self.exists = folder, repo, token, exists
        self.counts: Counter[str] = Counter()  # requests: `api`, `resolve` (of files), `store`
        self.of_file: Counter[str] = Counter()  # requests by the file's path, in LFS too
        self.asked: list[str] = []  # requests to the Hub, METHOD and path
        self.leaked: list[str] = []  # credentials sent to the store, which must get none
        self.uploads: list[str] = []  # files uploaded to the store, with repetitions
        self.messages: list[str] = []  # messages of pushed commits
        self.branches: dict[str, str] = {}
        self.commits: dict[str, dict[str, HubStubFile]] = {}
        self.blobs: dict[str, HubStubFile] = {}
        self.guard = threading.Lock()
        self._window = 0.0, 0  # its begin, requests in it
        self._clock_offset = 0.0
        self.commit()
        self.store = _Store(self)
        super().__init__(_Handler)

    @property
    def url(self) -> str:
        return f"hf://datasets/{self.repo}"

    def commit(self, branch: str = "main") -> str:
        """Commit the folder's current files to the branch; returns the commit id."""
        files = {}
        for path in sorted(each for each in self.folder.rglob("*") if each.is_file()):
            files[path.relative_to(self.folder).as_posix()] = self._file(path)
        return self.add_commit(files, branch)

    def add_commit(self, files: Mapping[str, HubStubFile], branch: str = "main") -> str:
        """Commit these files, given by path; returns the commit id."""
        text = repr((len(self.commits), sorted((name, file.oid) for name, file in files.items())))
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha], self.branches[branch] = dict(files), sha
        self.blobs |= {file.oid: file for file in files.values() if file.is_large}
        self.names = {file.oid: name for name, file in files.items()}
        return sha

    def read(self, path: str, revision: str = "main") -> bytes:
        """A file of a revision."""
        file = self.commits[self.branches.get(revision, revision)][path]
        return file.read()

    def upload(self, oid: str, data: bytes) -> bool:
        """Upload a file to the store; returns whether it is accepted."""
        if hashlib.sha256(data).hexdigest() != oid:
            return False
        with self.guard:
            if self.most_uploads is not None and len(self.uploads) >= self.most_uploads:
                return False
            self.uploads.append(oid)
            self.blobs[oid] = HubStubFile(self.folder, len(data), oid, True, data)
        return True

    def _file(self, path: Path) -> HubStubFile:
        data = path.read_bytes()
        if path.suffix not in LARGE:
            return _small(data)
        kept = data if len(data) <= _KEPT else None
        return HubStubFile(path, len(data), hashlib.sha256(data).hexdigest(), True, kept)

    def close(self) -> None:
        self.store.close()
        super().close()

    def signed(self, oid: str) -> str:
        """Signed address of a file in LFS."""
        expires = self._now() + self.signed_seconds
        text = f"{expires:.3f}"
        return f"{self.store.endpoint}/blobs/{oid}?Expires={text}&Signature={_sign(oid, text)}"

    def blob(self, oid: str, query: Mapping[str, list[str]]) -> HubStubFile | None:
        """The file of a valid signed address."""
        [expires], [signature] = (query.get(name, ["0"]) for name in ("Expires", "Signature"))
        is_good = hmac.compare_digest(signature, _sign(oid, expires))
        return self.blobs.get(oid) if is_good and self._now() < float(expires) else None

    def end_addresses(self) -> None:
        """Let all addresses of the store expire, by a jump of the clock."""
        self._clock_offset += 2 * 3600

    def _now(self) -> float:
        return time.time() + self._clock_offset

    def refused_for(self) -> float:
        """Count a request; returns for how many seconds the Hub refuses further ones."""
        with self.guard:
            if self.limit is None:
                return 0.0
            most, seconds = self.limit
            now = time.monotonic()
            begin, count = self._window
            if now >= begin + seconds:
                begin, count = now, 0
            self._window = begin, count + 1
            self.early += count > most
            return begin + seconds - now if count >= most else 0.0


def _sign(oid: str, expires: str) -> str:
    return hmac.new(b"stub", f"{oid} {expires}".encode(), "sha256").hexdigest()


class _Store(LocalServer):
    """The server of files in LFS."""

    def __init__(self, hub: HubStub) -> None:
        self.hub = hub
        super().__init__(_StoreHandler)


class _Sending(Handler):
    """Sends ranges of files."""

    def send_file(self, hub: HubStub, file: HubStubFile, headers: Mapping[str, str]) -> None:
        if hub.busy > 0 and self.command != "HEAD":
            hub.busy -= 1
            self.send(503)
            return
        hub.sent += self.send_range(file.read(), headers)


class _StoreHandler(_Sending):
    server: _Store

    def serve(self) -> None:
        hub, parts = self.server.hub, urlsplit(self.path)
        with hub.guard:
            hub.counts["store"] += 1
            if any(self.headers.get(name) for name in ("Authorization", "Cookie")):
                hub.leaked.append(self.path)
        oid = parts.path.rpartition("/")[2]
        if self.command == "PUT":
            self.send(200 if hub.upload(oid, self.body()) else 403)
            return
        with hub.guard:
            hub.of_file[hub.names.get(oid, oid)] += 1
        file = hub.blob(oid, parse_qs(parts.query)) if self.command == "GET" else None
        if file is None:
            self.send(403, b"<Error><Code>AccessDenied</Code></Error>")
            return
        self.send_file(hub, file, {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})


class _Handler(_Sending):
    server: HubStub

    def serve(self) -> None:
        hub, parts, body = self.server, urlsplit(self.path), self.body()
        path, repo = unquote(parts.path), hub.repo
        is_file = path.startswith((f"/datasets/{repo}/resolve/", "/api/resolve-cache/"))
        with hub.guard:
            hub.counts["resolve" if is_file else "api"] += 1
            hub.asked.append(f"{self.command} {path}")
        if (seconds := hub.refused_for()) > 0:
            kind, delay = "resolvers" if is_file else "api", max(1, round(seconds + 0.5))
            limits = {"RateLimit": f'"{kind}";r=0;t={delay}', "Retry-After": str(delay)}
            limits = {name: limits[name] for name in hub.limit_headers}
            self.send(429, b"too many requests", limits)
        elif hub.html:
            self.send(200, _PAGE.encode(), {"Content-Type": "text/html"})
        elif hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif hub.gated:
            self.send(403, b"", {"X-Error-Code": "GatedRepo"})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            is_good = "license: nonsense" not in json.loads(body)["content"]
            errors = [] if is_good else [{"message": '"license" must be one of …'}]
            self._json({"errors": errors, "warnings": []}, status=200 if is_good else 400)
        elif not hub.exists:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif self.command == "POST" and (
            found := re.fullmatch(rf"/api/datasets/{repo}/(branch|preupload|commit)/(.+)", path)
        ):
            getattr(self, f"_{found[1]}")(found[2], body)
        elif path == f"/datasets/{repo}.git/info/lfs/objects/batch":
            self._batch(json.loads(body))
        elif found := re.fullmatch(rf"/api/datasets/{repo}(?:/revision/(.+))?", path):
            if (sha := self._commit_of(found[1] or "main")) is not None:
                facts = {"private": hub.is_private, "downloads": 0, "likes": 0, "tags": []}
                self._json({"id": repo, "sha": sha, "siblings": [], "disabled": False, **facts})
        elif found := re.fullmatch(rf"/api/datasets/{repo}/tree/(.+)", parts.path):
            revision, _, below = found[1].partition("/")
            self._tree(unquote(revision), unquote(below), parse_qs(parts.query))
        elif found := re.fullmatch(rf"/api/datasets/{repo}/paths-info/(.+)", path):
            self._paths(found[1], parse_qs(body.decode())["paths"])
        elif found := re.fullmatch(rf"/datasets/{repo}/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2])
        elif found := re.fullmatch(rf"/api/resolve-cache/datasets/{repo}/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], is_cached=True)
        else:
            self.send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _commit_of(self, revision: str) -> str | None:
        """The commit of a revision; if there is none, answers with the error."""
        sha = self.server.branches.get(revision, revision)
        if sha in self.server.commits:
            return sha
        self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        return None

    def _tree(self, revision: str, below: str, query: Mapping[str, list[str]]) -> None:
        if (sha := self._commit_of(revision)) is None:
            return
        start = f"{below}/" if below else ""
        inside = {n: f for n, f in self.server.commits[sha].items() if n.startswith(start)}
        if not inside:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        is_deep = query.get("recursive", ["False"])[0].lower() in ("true", "1")
        entries: dict[str, dict[str, Any]] = {}
        for name, file in inside.items():
            parts = name[len(start) :].split("/")
            for depth in range(1, len(parts) if is_deep else min(2, len(parts))):
                path = start + "/".join(parts[:depth])
                entries[path] = _directory(path)
            if is_deep or len(parts) == 1:
                entries[name] = _about(name, file)
        at, page = int(query.get("cursor", ["0"])[0]), self.server.page
        more = {}
        if at + page < len(entries):
            words = f"recursive={is_deep}&cursor={at + page}"
            url = f"{self.server.endpoint}{urlsplit(self.path).path}?{words}"
            more = {"Link": f'<{url}>; rel="next"'}
        self._json([entries[name] for name in sorted(entries)][at : at + page], more)

    def _paths(self, revision: str, paths: list[str]) -> None:
        """The request of huggingface_hub before 1 for a path."""
        if (sha := self._commit_of(revision)) is not None:
            files, found = self.server.commits[sha], []
            for path in paths:
                if path in files:
                    found.append(_about(path, files[path]))
                elif any(name.startswith(f"{path}/") for name in files):
                    found.append(_directory(path))
            self._json(found)

    def _resolve(self, revision: str, path: str, *, is_cached: bool = False) -> None:
        if (sha := self._commit_of(revision)) is None:
            return
        hub, file = self.server, self.server.commits[sha].get(path)
        with hub.guard:
            hub.of_file[path] += 1
        headers = {"X-Repo-Commit": sha}
        if file is None:
            self.send(404, b"", {**headers, "X-Error-Code": "EntryNotFound"})
        elif file.is_large and not hub.mirrors:
            headers |= {"X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.oid}"'}
            self.send(302, b"", {**headers, "Location": hub.signed(file.oid)})
        elif hub.cached and not is_cached:
            headers |= {"X-Linked-Size": str(file.size), "ETag": f'"{file.oid}"'}
            to = f"/api/resolve-cache/datasets/{hub.repo}/{sha}/{quote(path)}"
            self.send(307, b"", {**headers, "Location": to})
        else:
            self.send_file(hub, file, {**headers, "ETag": f'"{file.oid}"'})

    def _create(self, value: Mapping[str, Any]) -> None:
        hub = self.server
        assert (value["type"], f"{value['organization']}/{value['name']}") == ("dataset", hub.repo)
        if not (exists := hub.exists):
            hub.exists = True
            hub.is_private = bool(value.get("private")) or value.get("visibility") == "private"
            hub.add_commit({".gitattributes": _small(b"*.parquet filter=lfs\n")})
        self._json({"url": f"{hub.endpoint}/datasets/{hub.repo}"}, status=409 if exists else 200)

    def _branch(self, branch: str, body: bytes) -> None:
        start = json.loads(body or b"{}").get("startingPoint", "main")
        exists = branch in self.server.branches
        self.server.branches.setdefault(branch, self.server.branches.get(start, start))
        self._json({}, status=409 if exists else 200)

    def _preupload(self, revision: str, body: bytes) -> None:
        """Report which files go to LFS, and the ids of existing ones."""
        if (sha := self._commit_of(revision)) is None:
            return
        hub, found = self.server, []
        for path in (each["path"] for each in json.loads(body)["files"]):
            mode = "lfs" if path.endswith(LARGE) else "regular"
            about = {"path": path, "uploadMode": mode, "shouldIgnore": path in hub.ignored}
            if (existing := hub.commits[sha].get(path)) is not None:
                about["oid"] = existing.oid
            found.append(about)
        self._json({"files": found})

    def _batch(self, request: Mapping[str, Any]) -> None:
        """The batch API of LFS: upload addresses of missing files."""
        hub, found = self.server, []
        for each in request["objects"]:
            about = {"oid": each["oid"], "size": each["size"]}
            if each["oid"] not in hub.blobs:
                about["actions"] = {"upload": {"href": hub.signed(each["oid"])}}
            found.append(about)
        self._json({"transfer": "basic", "objects": found})

    def _commit(self, revision: str, body: bytes) -> None:
        hub = self.server
        if (before := hub.before_commit) is not None:
            hub.before_commit = None
            before()
        head, *lines = (json.loads(line) for line in body.splitlines())
        if head["value"].get("parentCommit", hub.branches[revision]) != hub.branches[revision]:
            self.send(412, b'{"error": "A commit has happened since."}')
            return
        files = dict(hub.commits[hub.branches[revision]])
        for line in lines:
            about = line["value"]
            if line["key"] == "deletedFile":
                del files[about["path"]]
            elif line["key"] == "lfsFile":
                if about["oid"] not in hub.blobs:
                    self.send(400, b'{"error": "A file was not uploaded."}')
                    return
                files[about["path"]] = hub.blobs[about["oid"]]
            else:
                assert (line["key"], about["encoding"]) == ("file", "base64")
                files[about["path"]] = _small(base64.b64decode(about["content"]))
        sha = hub.add_commit(files, revision)
        hub.messages.append(head["value"]["summary"])
        if hub.lost > 0:
            hub.lost -= 1
            self.send(504)
            return
        url = f"{hub.endpoint}/datasets/{hub.repo}/commit/{sha}"
        self._json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def _json(self, value: object, headers: Mapping[str, str] = {}, *, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send(status, body, {"Content-Type": "application/json", **headers})


def _small(data: bytes) -> HubStubFile:
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return HubStubFile(Path(), len(data), oid, False, data)


def _directory(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}


def _about(name: str, file: HubStubFile) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "file", "path": name, "size": file.size, "oid": file.oid}
    if file.is_large:
        found["oid"] = hashlib.sha1(file.oid.encode()).hexdigest()  # git id of the pointer
        found["lfs"] = {"oid": file.oid, "size": file.size, "pointerSize": 134}
    return found
