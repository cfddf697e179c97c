"""Opening of storages: their layers, and options of each kind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from seqrecord.cloud.objects.azure import AzureContainer
from seqrecord.cloud.objects.storage import ObjectStorage
from seqrecord.cloud.settings import StorageSettings, split_options
from seqrecord.errors import LocationError
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.opening import open_storage
from tests.kit.processes import run_python

SECRET = "MARKED-S3CRET"
AZURE = "https://acme.blob.core.windows.net/box/path"
CHINA = "https://acme.blob.core.chinacloudapi.cn/box/path"
OTHER = f"AccountName=other;AccountKey={SECRET}"


@pytest.fixture(autouse=True)
def no_azure_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT", "ACCOUNT_NAME", "ACCOUNT_KEY", "KEY", "CONNECTION_STRING", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


def layers(storage: Storage) -> list[str]:
    names = [type(storage).__name__]
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
        names.append(type(storage).__name__)
    return names


def azure(storage: Storage) -> ObjectStorage:
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
    assert isinstance(storage, ObjectStorage)
    return storage


def account_of(storage: Storage) -> AzureContainer:
    source = azure(storage).bucket
    assert isinstance(source, AzureContainer)
    return source


def test_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, http = (
        ["ParallelStorage", "RetryingStorage", "ObjectStorage"],
        "http://127.0.0.1:9/path",
    )
    cases: list[tuple[Any, dict[str, Any], list[str]]] = [
        (tmp_path, {}, ["LocalStorage"]),
        (tmp_path, {"mount": False}, ["LocalStorage"]),
        (tmp_path, {"mount": True}, ["RetryingStorage", "MountStorage"]),
        *((url, {}, remote) for url in (AZURE, http)),
        *((f"{scheme}://bucket/path", {"anon": True}, remote) for scheme in ("s3", "gs")),
        ("memory://box/path", {}, ["FsspecStorage"]),
    ]
    for place, options, expected in cases:
        assert layers(open_storage(place, options)) == expected
    assert layers(open_storage(http, {"backend": "fsspec"}))[-1] == "FsspecStorage"
    cached = open_storage(AZURE, cache_dir=tmp_path / "cache", cache_limit="1GiB")
    assert layers(cached) == ["CachedStorage", *remote]
    # A path in a remote mount.
    table, works = f"30 22 0:40 / {tmp_path} rw - fuse blobfuse2 rw", Path.read_text

    def read_text(path: Path, *args: Any) -> str:
        return table if path == Path("/proc/self/mountinfo") else works(path, *args)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert layers(open_storage(tmp_path))[-1] == "MountStorage"
    assert layers(open_storage(tmp_path, {"mount": False})) == ["LocalStorage"]


def test_all_backends_find_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    key: dict[str, Any] = {"account_key": "a2V5"}
    for url, options in (
        (AZURE, {"backend": "urllib3", **key}),
        (AZURE, {}),
        ("az://acme/box/path", {"backend": "blobfile"}),
    ):
        storage = azure(open_storage(url, options))
        account = account_of(storage)
        assert account.config.get("account_key") == options.get("account_key")
        assert (account.account, account.bucket, account.root) == ("acme", "box", "path")
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    storage = azure(open_storage(AZURE, key))
    with pytest.raises(LocationError, match="pip install obstore") as caught:
        storage.put("manifest.json", b"x", expected=None)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("host", ["core.windows.net", "core.chinacloudapi.cn"])
def test_adlfs_reads_the_account_of_the_url(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its host, and never that of a connection string in the environment."""
    adlfs, asked = pytest.importorskip("adlfs", reason="pip install adlfs"), list[str]()

    def info(filesystem: Any, path: str) -> dict[str, int]:
        asked.append(f"{filesystem.account_url}/{path}")
        return {"size": 7}

    monkeypatch.setattr(adlfs.AzureBlobFileSystem, "info", info)
    url = f"https://acme.blob.{host}/box/path"
    storage = open_storage(f"{url}?sig={SECRET}", {"backend": "adlfs"})
    assert storage.size("a") == 7
    assert asked == [f"{url}/a"]
    storage.close()
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", OTHER)
    with pytest.raises(LocationError, match="expected: acme; got: other"):
        open_storage(f"{url}?sig={SECRET}", {"backend": "adlfs"})


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    (AZURE, {"backend": "urllib2"}, "any of adlfs, blobfile, fsspec, urllib3"),
    (AZURE, {"backend": "blobfile", "account_key": SECRET}, "from the environment"),
    (AZURE, {"mount": True}, "local paths only"),
    (CHINA, {"backend": "blobfile"}, r"public cloud only.*acme.blob.core.windows.net"),
    (AZURE, {"backend": "adlfs", "connection_string": OTHER}, r"which adlfs would read.*other"),
    ("az://box/path", {}, r"the account.*https://ACC.*account_name.*AZURE_ST"),
    ("az://acme/box/path", {"account_name": "acme"}, "account or the container"),
    (AZURE, {"account_name": "other"}, "of another account"),
    (AZURE, {"connection_string": f"AccountName=o;AccountKey={SECRET}"}, "of another account"),
    (AZURE, {"connection_string": f"AccountKey={SECRET}"}, "without an account"),
    (AZURE, {"connection_string": f"BlobEndpoint=https://x?{SECRET};AccountKey=y"}, "endpoint"),
    (AZURE, {"acount_key": SECRET}, "unknown storage option.*acount_key"),
    (AZURE, {"account_key": SECRET, "sas_token": f"sig={SECRET}"}, "more than one kind"),
    (AZURE, {"client_secret": SECRET}, "tenant_id and client_id"),
    (AZURE, {"account_key": b"x"}, "not text"),
    (AZURE, {"endpoint": f"https://host/?sig={SECRET}"}, "endpoint"),
    (AZURE, {"endpoint": f"https://me:{SECRET}@host/"}, "endpoint"),
    (AZURE, {"endpoint": f"ftp://{SECRET}"}, "endpoint"),
    (AZURE, {"deadline": 0}, "deadline.*above 0"),
    (AZURE, {"max_requests": 1.5}, "max_requests.*whole number"),
    (AZURE, {"requests_per_second": "many"}, "requests_per_second.*above 0"),
    (AZURE, {"bandwidth": "fast"}, "bandwidth.*bytes a second"),
    ("memory://box", {"backend": "urllib3"}, "no such backend"),
    ("s3://b/p", {"acess_key_id": SECRET}, "unknown storage option.*acess_key_id"),
    ("s3://b/p", {"backend": "adlfs"}, "no such backend for s3"),
    ("s3://b/p", {"client_options": SECRET}, "unknown storage option.*client_options"),
    ("gs://b/p", {"key": SECRET}, "unknown storage option.*key"),
    ("gs://b/p", {"anon": True, "bearer_token": SECRET}, "more than one kind"),
    ("https://h/p", {"token": SECRET}, "unknown storage option.*expected: none.*got: token"),
    ("memory://box", {"mount": True}, "local paths only"),
    ("records", {"direct": True}, "a local path does not take.*direct"),
    ("records", {"account_key": SECRET}, "a local path does not take.*account_key"),
    ("records", {"deadline": 5}, "a local path does not take.*deadline"),
    ("records", {"bandwidth": "1MB"}, "a local path does not take.*bandwidth"),
    ("records", {"mount": True, "account_key": SECRET}, "a mount does not take.*account_key"),
    ("records", {"mount": "perhaps"}, "true or false"),
]


def test_options_that_are_invalid() -> None:
    for url, options, message in OPTIONS:
        with pytest.raises(LocationError, match=message) as caught:
            open_storage(url, options)
        assert SECRET not in str(caught.value)
        assert SECRET not in str(caught.value.__context__)


def test_options_are_split() -> None:
    given = {"deadline": "5", "max_requests": 4, "key": "x", "mount": "1"}
    settings, rest = split_options(given, "")
    assert settings == StorageSettings(mount=True, deadline=5.0, max_requests=4)
    assert rest == {"key": "x"}
    assert split_options({}, "") == (StorageSettings(), {})
    assert split_options({"mount": None}, "")[0].changed_names() == []


def test_azure_packages_are_imported_on_first_use() -> None:
    code = (
        "from seqrecord.store.storage.opening import open_storage; import sys; "
        "open_storage('https://acme.blob.core.windows.net/box/p', {'account_key': 'a2V5'}); "
        "sys.exit(sorted({'obstore', 'adlfs', 'blobfile', 'azure.core'} & set(sys.modules)) or 0)"
    )
    run_python("-c", code)
