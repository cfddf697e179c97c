"""Parsing of paths and URLs into a `Location`, and unique names of places.

The name of a place has account and endpoint, but no credentials::

    https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH
    s3://BUCKET/PATH?endpoint=https://HOST          endpoint from options
    az://CONTAINER/PATH?account_name=ACCOUNT&endpoint=http://HOST
    github://BRANCH/PATH?org=ORG&repo=REPO          from the part of the URL before @
    /local/path
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from seqrecord.errors import LocationError
from seqrecord.store.text import repr_of

# The public cloud, national clouds, and accounts with a DNS zone.
_CLOUD = (
    r"(core\.windows\.net|core\.usgovcloudapi\.net|core\.chinacloudapi\.cn|storage\.azure\.net)"
)
_HOST = re.compile(
    rf"(?P<account>[a-z0-9]{{3,24}})(?P<zone>\.z[0-9]+)?\.(?P<kind>blob|dfs)\.(?P<cloud>{_CLOUD})"
)
_ANY_HOST = re.compile(rf".*\.{_CLOUD}", re.IGNORECASE)
_HTTPS = "https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH"
_ABFS = "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)
_SCHEME = re.compile(r"\s*(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://")  # of two letters or more
_KNOWN = (
    r"abfss?|adl|az|dbfs|file|ftps?|gc?s|gcs|github|hdfs|hf|https?|memory|oci|oss|r2|s3[an]?|sftp|"
    r"smb|ssh|wasbs?|webdavs?"
)
# Malformed URLs: `http:/…`, `http:…`, `http//…`, `http;//…`, `user:password@host`, `host?sig=…`.
_BROKEN = re.compile(
    rf"\s*(?:(?P<a>[a-z][a-z0-9+.-]+):[/\\]|(?P<b>{_KNOWN})(?:[/\\]{{2}}|:(?=.*(?:@|[?&].*=)))|"
    rf"(?:(?P<c>[a-z][a-z0-9+.-]*)(?::|//)|(?P<d>{_KNOWN})\W?/{{1,3}}|[^/\\@]*//)?"
    r"[^/\\@]*:[^/\\@]*[^@/]*@|"
    r".*[?&][\w%-]*(?:sig|signature|token|credential)=)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Location:
    """Parsed location of a dataset.

    Attributes:
        protocol: `file`, `az`, or fsspec's name of a filesystem.
        root: path in it; `CONTAINER/PATH` for Azure.
        shown: URL without credentials.
        options: storage options in the URL.

    `root` and `options` may contain credentials, so `repr` omits them.
    """

    protocol: str
    root: str = field(repr=False)
    shown: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_location(location: str | os.PathLike[str], *, backend: str | None = None) -> Location:
    """Parse a local path or a URL, without any request.

    Local: a path or `file:///path`. Azure: `https://ACCOUNT.blob.core.windows.net/CONTAINER/PATH`,
    optionally with a SAS as its query, `abfs[s]://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH`,
    `az://CONTAINER/PATH` with the account from `storage_options` or the environment, and blobfile's
    `az://ACCOUNT/CONTAINER/PATH` if `backend` is `"blobfile"`. Without PATH, the whole container.
    Other URLs go to fsspec: `memory://`, `s3://`, `gs://`, `http://`.

    Path objects cannot represent URLs, since `pathlib` drops one of two slashes. Path objects with
    `SCHEME:/` inside, and texts that begin with it, are refused.

    Raises `LocationError` for an invalid location; the message shows a valid one.
    """
    text = _text(location, "not a path or URL")
    if "://" not in text:
        _refuse_broken_url(location, text)
        return _local(text)
    url = _Url.of(text)
    if url.scheme != "file" and ".." in unquote(url.parts.path).split("/"):
        raise LocationError("a URL with .. in its path", got=url.shown)
    return _FORMS.get(url.scheme, _any_url)(url, backend)


def is_blob_service(endpoint: str, account: str) -> bool:
    """Whether `endpoint` is the blob service of an account in a public or national cloud."""
    host = _HOST.fullmatch(endpoint.removeprefix("https://"))
    if host is None or not endpoint.startswith("https://"):
        return False
    return (host["account"], host["kind"]) == (account, "blob")


def local_path(path: str | os.PathLike[str], what: str) -> Path:
    """Parse a path that must be local, with `~` expanded; `what` names it in errors.

    Raises `LocationError` for a URL, without showing it, since it may contain a signature.
    """
    text = _text(path, f"{what}: not a path")
    if (match := _SCHEME.match(text)) is not None:
        raise LocationError(
            f"{what}: a URL",
            expected="a path of this machine",
            got=f"{match['scheme'].lower()}://…",
        )
    _refuse_broken_url(path, text)
    return Path(_local(text).root)


def _text(path: str | os.PathLike[str], problem: str) -> str:
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise LocationError(problem, expected="one path or URL", got=repr_of(path))
    text: str | bytes = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise LocationError(problem, expected="text", got=repr_of(path))
    is_url = "://" in text
    try:
        # Local names may have bytes that are not UTF-8, which Python represents as surrogates.
        text.encode("utf-8", "strict" if is_url else "surrogateescape")
    except UnicodeEncodeError as error:
        shown = text[error.start : error.end] if is_url else text  # the rest may be secret
        raise LocationError(problem, expected="Unicode", got=repr_of(shown)) from None
    return text


def _refuse_broken_url(path: str | os.PathLike[str], text: str) -> None:
    """Raise `LocationError` for a malformed URL, without showing it: it may be signed."""
    places = [0] if isinstance(path, str) else [0, *(m.end() for m in re.finditer("/", text))]
    matches = ((place, match) for place in places if (match := _BROKEN.match(text, place)))
    if broken := [match for place, match in matches if not place or any(match.groups())]:
        words = (word for match in broken for word in match.groups() if word)
        scheme = next(words, "scheme").lower()
        raise LocationError(
            f"{'text' if isinstance(path, str) else 'a path object'} that looks like a URL with a "
            "slash missing, or with a credential",
            expected=f'the URL as text, "{scheme}://…"; for a folder with such a name its path as '
            'text that begins with "/" or "./"',
            got=f"{scheme}:…",
        )


def _local(path: str) -> Location:
    if not path:
        raise LocationError("not a path or URL", expected="text", got=repr(path))
    try:
        return Location("file", str(Path(path).expanduser()), path)
    except RuntimeError as error:
        raise LocationError(str(error), got=path) from None


@dataclass(frozen=True)
class _Url:
    """A URL whose syntax was checked."""

    text: str = field(repr=False)
    scheme: str
    parts: SplitResult = field(repr=False)
    host: str  # with port, without user and password

    @classmethod
    def of(cls, text: str) -> _Url:
        """Split a URL. Raises `LocationError`, without the text, which may have a password."""
        scheme = text.split("://", 1)[0].lower()
        match = _URL.fullmatch(scheme + text[len(scheme) :])
        try:
            parts = urlsplit(text) if match else None
        except ValueError:
            parts = None
        # The error shows no text, and chains no error of `urlsplit`: both may have a password
        # (tests/cloud/test_secrets.py::test_misspelt_urls).
        if match is None or parts is None:
            raise LocationError("not a URL", expected="SCHEME://HOST/PATH")
        if _may_have_password(scheme, match["authority"], match["rest"]):
            raise LocationError(
                "a URL that may have a password with / in it",
                expected="%2F for / in names and passwords, and %40 for @ in paths",
                got=f"{scheme}://…",
            )
        host = parts.netloc.rpartition("@")[2]
        port = re.sub(r"\[.*?\]", "", host).partition(":")[2]
        if not (port.isdecimal() or port[:1] in ("", ":")) or re.search(
            "%(25)*(40|3A)", host, re.IGNORECASE
        ):
            raise LocationError(
                "a URL with a port that is not a number",
                expected=f"{scheme}://HOST[:PORT]/PATH, with a credential in storage_options",
                got=f"{scheme}://…",
            )
        return cls(text, scheme, parts, host)

    @property
    def shown(self) -> str:
        return f"{self.scheme}://{self.host}{self.parts.path}"

    def of_folder(self) -> _Url:
        """Return the URL. Raises `LocationError` if it has a query or a fragment."""
        if self.parts.query or self.parts.fragment:
            raise LocationError(
                "the URL of a folder cannot contain ? or #",
                expected=self.shown,
                got=f"{self.shown}?…",
            )
        return self


def _may_have_password(scheme: str, authority: str, path: str) -> bool:
    """Whether a `/` may be inside the password of a URL, so that it ends the host too early."""
    has_user = (not authority and scheme != "file") or ":" in re.sub(r"\[.*?\]", "", authority)
    return bool((has_user and re.search("@|%(25)*40", path)) or re.match("/+[^/]*:[^/]*@", path))


def _file_url(url: _Url, _: str | None) -> Location:
    if url.parts.netloc not in ("", "localhost"):
        raise LocationError("a file URL with a host", expected="file:///path", got=url.shown)
    return _local(unquote(url.parts.path))


def _abfs_url(url: _Url, _: str | None) -> Location:
    parts, container = url.parts, url.parts.username
    host = _HOST.fullmatch(url.host.lower())
    is_clear = container and host is not None and host["kind"] == "dfs"
    if not is_clear or host is None or parts.password or parts.query or parts.fragment:
        raise LocationError("an unclear Azure URL", expected=_ABFS, got=url.shown)
    public_url = url.shown.replace("://", f"://{container}@", 1)
    return Location("az", _in_container(str(container), parts.path), public_url, _account(host))


def _az_url(url: _Url, backend: str | None) -> Location:
    if "@" in url.parts.netloc:
        return _abfs_url(url, backend)
    parts = url.of_folder().parts
    authority, path = parts.netloc, parts.path.strip("/")
    has_account = backend == "blobfile"
    if not authority or (has_account and not path):
        expected = f"az://{'ACCOUNT/' * has_account}CONTAINER/PATH"
        raise LocationError("an az:// URL without container", expected=expected, got=url.shown)
    if has_account:
        return Location("az", path, url.shown, {"account_name": authority})
    return Location("az", _in_container(authority, path), url.shown)


def _web_url(url: _Url, backend: str | None) -> Location:
    """Azure Blob, or any web server."""
    if _ANY_HOST.fullmatch(url.host) is None:
        root = _any_url(url, backend).root
        return Location(url.scheme, f"{url.scheme}://{root}", url.shown)
    parts = url.parts
    host = _HOST.fullmatch(parts.netloc.lower())
    path = unquote(parts.path).strip("/")
    if host is None or not path or parts.scheme != "https" or parts.fragment:
        raise LocationError("an unclear Azure URL", expected=_HTTPS, got=url.shown)
    options = _account(host)
    if parts.query:
        options["sas_token"] = parts.query
    return Location("az", path, url.shown, options)


def _bucket_url(url: _Url, backend: str | None) -> Location:
    if "@" in url.of_folder().parts.netloc:
        raise LocationError(
            "a bucket's URL with a user or a password",
            expected=f"{url.scheme}://BUCKET/PATH, with the credential in storage_options",
            got=f"{url.scheme}://…@{url.host}{url.parts.path}",
        )
    return _any_url(url, backend)


def _any_url(url: _Url, _: str | None) -> Location:
    return Location(url.scheme, url.of_folder().text.split("://", 1)[1], url.shown)


_FORMS: Mapping[str, Callable[[_Url, str | None], Location]] = {
    "file": _file_url,
    "http": _web_url,
    "https": _web_url,
    "abfs": _abfs_url,
    "abfss": _abfs_url,
    "az": _az_url,
    **dict.fromkeys(("s3", "s3a", "gs", "gcs"), _bucket_url),
}
"""Functions that make the location of a URL, with the option `backend`, by scheme."""


def _account(host: re.Match[str]) -> dict[str, Any]:
    """Account name and blob service, from the host name of an account."""
    zone = host["zone"] or ""
    endpoint = f"https://{host['account']}{zone}.blob.{host['cloud']}"
    return {"account_name": host["account"], "endpoint": endpoint}


def _in_container(container: str, path: str) -> str:
    return f"{container}/{path.strip('/')}".strip("/")


# Options that identify the place of files, with their aliases.
_OPTIONS = ("account_name", "endpoint", "endpoint_url", "base_url", "host", "port", "org", "repo")
_ALIASES = {"s3a": "s3", "gcs": "gs", "endpoint_url": "endpoint", "base_url": "endpoint"}


def named_place(url: str, options: Mapping[str, Any]) -> str:
    """Name of a URL's place without its query, with options that identify it, without secrets."""
    scheme, _, path = url.partition("://")
    place = f"{_ALIASES.get(scheme, scheme)}://" + "/".join(filter(None, path.split("/")))
    settings = {}
    for name in _OPTIONS:
        if value := options.get(name):
            text = re.sub(r"^(.*?//)?.*@", r"\1", str(value).partition("?")[0])
            settings[_ALIASES.get(name, name)] = text.rstrip("/")
    query = "&".join(f"{name}={text}" for name, text in settings.items())
    return f"{place}?{query}" if settings else place


def without_commit(url: str) -> str:
    """URL of a dataset on the Hub without its commit; other URLs unchanged."""
    return re.sub(r"^(hf://datasets/[^/]+/[^/@]+)@[0-9a-f]{40}(?=/|$)", r"\1", url)
