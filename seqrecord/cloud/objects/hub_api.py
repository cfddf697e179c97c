"""Requests to the Hugging Face Hub: commit, file listing, signed URLs.

Only the Hub's host receives the token. Files in LFS are on another host, at URLs that the Hub signs
for a limited time; these are in memory only.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from seqrecord.cloud.clients import redact_logs
from seqrecord.cloud.failures import classify
from seqrecord.cloud.objects.bucket import check_token_endpoint
from seqrecord.cloud.requests import TIMEOUT_SECONDS
from seqrecord.cloud.retrying import Retrier
from seqrecord.errors import (
    AccessError,
    DestinationError,
    LocationError,
    NotFoundError,
    SeqRecordError,
    StorageError,
    TransientError,
)
from seqrecord.store.lazy import import_extra
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.base import Entry

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_PAGES = 10_000  # pages of a listing: 10 million files
_MOST_COMMITS = 8  # commits with cached metadata per process
# Fewer locks than files: a lock per file would grow without limit. That one thread asks is shown by
# tests/cloud/test_hub.py::test_each_file_is_resolved_once.
_LOCKS = 64

_T = TypeVar("_T")


@dataclass(frozen=True)
class HubFile:
    """Metadata of a file: size, content hash, and whether it is in LFS.

    `identity` is the SHA-256 of a file in LFS, and the git object id of any other.
    """

    size: int
    identity: str
    is_large: bool


@dataclass(frozen=True)
class Address:
    """URL and headers for reading a file; a signed URL expires."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    is_signed: bool


class Listing:
    """Files below a folder by relative path, with an index of subfolders."""

    def __init__(self, files: Mapping[str, HubFile]) -> None:
        self.files = files
        self._folders: dict[str, dict[str, Entry]] = {}
        for path, file in files.items():
            parent, _, name = path.rpartition("/")
            entry = Entry(name, False, file.size, file.identity)
            while name not in (siblings := self._folders.setdefault(parent, {})):
                siblings[name] = entry
                if not parent:
                    break
                parent, _, name = parent.rpartition("/")
                entry = Entry(name, is_folder=True)

    def entries(self, folder: str) -> list[Entry]:
        """Files and folders directly in a folder, sorted by name; empty if it does not exist."""
        return sorted(self._folders.get(folder, {}).values(), key=lambda entry: entry.name)


class _CommitMetadata:
    """Cached metadata of a commit, which is immutable; shared with forks."""

    def __init__(self) -> None:
        self.listings: dict[str, Listing] = {}  # by folder
        self.files: dict[str, HubFile] = {}  # files requested one by one, by path in the repository
        self.addresses: dict[str, Address | None] = {}  # `None`: served by the Hub itself
        self._locks = PerProcess(lambda: [threading.Lock() for _ in range(_LOCKS)])

    def lock(self, path: str) -> threading.Lock:
        """Lock for requests about a path, so that only one thread makes them."""
        return self._locks.get()[hash(path) % _LOCKS]


_metadata_by_commit: OrderedDict[tuple[str | None, ...], _CommitMetadata] = OrderedDict()
_wait_until: dict[tuple[str, str], float] = {}  # by endpoint and kind of request: a monotonic time


class Hub:
    """A folder of a dataset repository on the Hub, at one commit.

    `revision` is a branch, tag or commit; its commit is requested once, and included in pickles.
    Metadata of commits is cached per process. After a 429, no thread of this process sends requests
    of that kind until the Hub's delay has passed.

    Raises `NotFoundError` for a missing repository, revision or file, `AccessError` for a refusal,
    and `StorageError` for a malformed response.
    """

    def __init__(
        self,
        endpoint: str,
        repo: str,
        revision: str,
        folder: str,
        token: str | None,
        retrier: Retrier,
        commit: str | None = None,
    ) -> None:
        self.endpoint, self.repo, self.revision, self.folder = endpoint, repo, revision, folder
        self._token, self._retrier = token, retrier
        self._commit = revision if self.is_fixed else commit
        self._shown = f"hf://datasets/{repo}@{revision}"
        self._lock = PerProcess(threading.Lock)
        self._metadata: _CommitMetadata | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.endpoint, self.repo, self.revision, self.folder
        return Hub, (*place, self._token, self._retrier, self._commit)

    @property
    def commit(self) -> str:
        """Commit of the revision, 40 hexadecimal digits."""
        if self._commit is None:
            with self._lock.get():
                if self._commit is None:
                    self._commit = self.head()[0]
        return self._commit

    def head(self) -> tuple[str, bool]:
        """Current commit of the revision, and whether the repository is private."""
        url = f"{self._api}/revision/{quote(self.revision, safe='')}"
        revision_info = self._get_json(url, {})[0]
        sha = revision_info.get("sha") if isinstance(revision_info, dict) else None
        if not isinstance(sha, str) or not _COMMIT.fullmatch(sha):
            raise self._malformed()
        return sha, bool(revision_info.get("private"))

    @property
    def fixed_url(self) -> str:
        """URL of the folder at its commit."""
        folder = f"/{self.folder}" if self.folder else ""
        return f"hf://datasets/{self.repo}@{self.commit}{folder}"

    @property
    def is_fixed(self) -> bool:
        """Whether the revision is a commit, as for external files."""
        return _COMMIT.fullmatch(self.revision) is not None

    def listing(self) -> Listing:
        """All files of the folder; empty if it does not exist."""
        metadata = self._commit_metadata()
        with metadata.lock(""):
            if self.folder not in metadata.listings:
                metadata.listings[self.folder] = Listing(self._request_files())
        return metadata.listings[self.folder]

    def file(self, path: str) -> HubFile:
        """Metadata of a file, from the listing if loaded, else by a request."""
        metadata = self._commit_metadata()
        if (listing := metadata.listings.get(self.folder)) is not None:
            if path not in listing.files:
                raise NotFoundError("no such file", file=self.shown(path))
            return listing.files[path]
        if (full := self._full(path)) not in metadata.files:
            with metadata.lock(full):
                if full not in metadata.files:
                    self._resolve(path)
        return metadata.files[full]

    def address(self, path: str) -> Address:
        """Address for reading a file; requested once for files in LFS."""
        metadata, full = self._commit_metadata(), self._full(path)
        if self.file(path).is_large:
            if full not in metadata.addresses:
                with metadata.lock(full):
                    if full not in metadata.addresses:
                        self._resolve(path)
            if (address := metadata.addresses[full]) is not None:
                return address
        return Address(self._url(full), self.headers(), is_signed=False)

    def renew(self, path: str, refused: Address) -> None:
        """Request another address, unless another thread did."""
        metadata, full = self._commit_metadata(), self._full(path)
        with metadata.lock(full):
            if metadata.addresses.get(full) == refused:
                self._resolve(path)

    def shown(self, path: str) -> str:
        """URL of a file in the folder, for messages."""
        return f"{self._shown}/{self._full(path)}" if path else self._shown

    def headers(self) -> dict[str, str]:
        """Headers of requests to the Hub's host, with the token if there is one."""
        build = self._hub("utils").build_hf_headers
        headers: dict[str, str] = build(token=self._token, library_name="seqrecord")
        if any(name.lower() == "authorization" for name in headers):
            check_token_endpoint(self.endpoint, self._shown)
        return headers

    def send(self, kind: str, path: str, request: Callable[[], _T]) -> _T:
        """Result of a single attempt of a request to the Hub's host.

        Waits first if the Hub asked for a delay. `kind` is the kind of rate limit: `api` or
        `resolvers`.
        """
        redact_logs()
        gate, file = (self.endpoint, kind), self.shown(path)
        while (remaining_seconds := _wait_until.get(gate, 0.0) - time.monotonic()) > 0:
            self._retrier.check_server_delay(remaining_seconds, file=file)
            self._retrier.sleep(remaining_seconds, file=file)
        try:
            return request()
        except SeqRecordError as error:
            failure: Exception = error
        except Exception as error:
            failure = _failure(error, file)
        try:
            if isinstance(failure, TransientError) and failure.retry_after:
                retry_time = time.monotonic() + failure.retry_after
                _wait_until[gate] = max(retry_time, _wait_until.get(gate, 0.0))
                self._retrier.check_server_delay(failure.retry_after, file=file)
                failure.retry_after = None  # the next call waits for it
            raise failure
        finally:
            del failure  # its traceback refers to this frame

    def change(self, method: str, **arguments: Any) -> Any:
        """Call a method of huggingface_hub's `HfApi` for this repository; one attempt."""
        self.headers()  # raises if the token must not be sent
        make = self._hub().HfApi
        api = make(endpoint=self.endpoint, token=self._token, library_name="seqrecord")
        repo_arguments = {"repo_id": self.repo, "repo_type": "dataset", **arguments}
        return self.send("api", "", lambda: getattr(api, method)(**repo_arguments))

    def retried(self, request: Callable[[], _T]) -> _T:
        """Result of a request, with retries."""
        return self._retrier.call(request, file=self._shown)

    def _resolve(self, path: str) -> None:
        """Request metadata and address of a file."""
        full, metadata = self._full(path), self._commit_metadata()
        url = self._url(full)
        get = self._hub().get_hf_file_metadata
        file_info = self.send(
            "resolvers",
            path,
            lambda: get(url, timeout=TIMEOUT_SECONDS, headers=self.headers(), token=False),
        )
        if file_info.commit_hash != self.commit or file_info.size is None or not file_info.etag:
            raise self._malformed(path)
        file_url, hub_url = urlsplit(file_info.location), urlsplit(self.endpoint)
        is_signed = file_url.netloc != hub_url.netloc
        if is_signed and file_url.scheme != hub_url.scheme:
            raise self._malformed(path)
        address = Address(file_info.location, {}, is_signed=True)
        metadata.addresses[full] = address if is_signed else None
        metadata.files[full] = HubFile(int(file_info.size), str(file_info.etag), is_signed)

    def _request_files(self) -> dict[str, HubFile]:
        folder_path = f"/{quote(self.folder, safe='')}" if self.folder else ""
        url: str | None = f"{self._api}/tree/{self.commit}{folder_path}"
        params, files = {"recursive": "true", "expand": "false"}, dict[str, HubFile]()
        for _ in range(_MOST_PAGES):
            if url is None:
                return files
            try:
                items, url = self._get_json(url, params)
            except NotFoundError as error:
                if error.message == _NO_ENTRY:
                    return {}
                raise
            try:
                files.update(self._entry(entry) for entry in items if entry["type"] == "file")
            except (AttributeError, KeyError, TypeError, ValueError):
                raise self._malformed() from None
            params = {}  # the next page's URL includes them
        raise StorageError("an endless listing", file=self._shown)

    def _entry(self, entry: Mapping[str, Any]) -> tuple[str, HubFile]:
        path = entry["path"].removeprefix(f"{self.folder}/" if self.folder else "")
        lfs = entry.get("lfs")
        blob = entry if lfs is None else lfs
        return path, HubFile(int(blob["size"]), str(blob["oid"]), lfs is not None)

    def _get_json(self, url: str, params: Mapping[str, str]) -> tuple[Any, str | None]:
        """Response of the API, and the URL of its next page; with retries."""
        if not url.startswith(f"{self.endpoint}/"):  # another host must not receive the token
            raise self._malformed()
        utils = self._hub("utils")

        def request() -> tuple[Any, str | None]:
            answer = utils.get_session().get(
                url, headers=self.headers(), params=params or None, timeout=TIMEOUT_SECONDS
            )
            utils.hf_raise_for_status(answer)
            try:
                return answer.json(), answer.links.get("next", {}).get("url")
            except ValueError:
                raise self._malformed() from None

        return self.retried(lambda: self.send("api", "", request))

    def _commit_metadata(self) -> _CommitMetadata:
        if self._metadata is None:
            key = (self.endpoint, self._token, self.repo, self.commit)
            self._metadata = _metadata_by_commit.setdefault(key, _CommitMetadata())
            while len(_metadata_by_commit) > _MOST_COMMITS:
                _metadata_by_commit.popitem(last=False)
        return self._metadata

    @property
    def _api(self) -> str:
        return f"{self.endpoint}/api/datasets/{self.repo}"

    def _url(self, full: str) -> str:
        return f"{self.endpoint}/datasets/{self.repo}/resolve/{self.commit}/{quote(full)}"

    def _full(self, path: str) -> str:
        return f"{self.folder}/{path}" if self.folder else path

    def _hub(self, module: str = "") -> Any:
        name = f"huggingface_hub.{module}" if module else "huggingface_hub"
        return import_extra(name, "a package is missing: pip install huggingface_hub", self._shown)

    def _malformed(self, path: str = "") -> StorageError:
        return StorageError(
            "not a response of the Hub: check HF_ENDPOINT, and whether a proxy or a login page is "
            "in between",
            file=self.shown(path),
            got=self.endpoint,
        )


_NO_ENTRY = "no such file"
NO_REVISION = "no such revision of this dataset on the Hub"
NO_DATASET = (
    "no such dataset on the Hub, or a private dataset that this token cannot read: set "
    "HF_TOKEN, or run `hf auth login`"
)
_CODES: Mapping[str, Callable[[], StorageError]] = {
    "EntryNotFound": partial(NotFoundError, _NO_ENTRY),
    "RevisionNotFound": partial(NotFoundError, NO_REVISION),
    "RepoNotFound": partial(NotFoundError, NO_DATASET),
    "GatedRepo": partial(
        AccessError,
        "this dataset is gated: accept its terms on its page, and set your token in HF_TOKEN, or "
        "run `hf auth login`",
    ),
}


def _failure(error: Exception, file: str) -> StorageError:
    """Convert an error of huggingface_hub to an error of this package, without its text."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    if (make_error := _CODES.get(headers.get("X-Error-Code", ""))) is not None:
        failure = make_error()
        failure.file = file
        return failure
    if isinstance(error, ValueError) and "Invalid metadata in README.md" in str(error):
        return DestinationError("the Hub refuses the card: check the license", file=file)
    if type(error).__name__ == "OfflineModeIsEnabled":
        return LocationError("HF_HUB_OFFLINE is set: the Hub cannot be read", file=file)
    return classify(error, file)
