from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from seqrecord.errors import LocationError
from seqrecord.storage import FsspecStorage, LocalStorage, Storage, StorageWrapper, open_storage
from seqrecord.storage.cache import CachedStorage
from seqrecord.storage.mounts import MountStorage
from seqrecord.storage.objects.azure import AzureContainer
from seqrecord.storage.objects.storage import ObjectStorage
from seqrecord.storage.opening import StorageSettings, split_options
from seqrecord.storage.parallel import ParallelStorage
from seqrecord.storage.retrying import RetryingStorage

SECRET = "MARKED-S3CRET"
AZURE = "https://acme.blob.core.windows.net/box/path"


@pytest.fixture(autouse=True)
def no_azure_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT", "ACCOUNT_NAME", "ACCOUNT_KEY", "KEY", "CONNECTION_STRING", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


def layers(storage: Storage) -> list[type]:
    found = [type(storage)]
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
        found.append(type(storage))
    return found


def azure(storage: Storage) -> ObjectStorage:
    while isinstance(storage, StorageWrapper):
        storage = storage.inner
    assert isinstance(storage, ObjectStorage)
    return storage


def account_of(storage: Storage) -> AzureContainer:
    source = azure(storage).bucket
    assert isinstance(source, AzureContainer)
    return source


def test_layers(tmp_path: Path) -> None:
    around = [ParallelStorage, RetryingStorage]
    assert layers(open_storage(tmp_path)) == [LocalStorage]
    assert layers(open_storage(tmp_path, {"mount": False})) == [LocalStorage]
    assert layers(open_storage(tmp_path, {"mount": True})) == [RetryingStorage, MountStorage]
    assert layers(open_storage(AZURE)) == [*around, ObjectStorage]
    assert layers(open_storage("http://127.0.0.1:9/path")) == [*around, ObjectStorage]
    assert (
        layers(open_storage("http://127.0.0.1:9/path", {"backend": "fsspec"}))[-1] is FsspecStorage
    )
    assert layers(open_storage("s3://bucket/path", {"anon": True})) == [*around, ObjectStorage]
    assert layers(open_storage("gs://bucket/path", {"anon": True})) == [*around, ObjectStorage]
    assert layers(open_storage("memory://box/path")) == [FsspecStorage]
    cached = open_storage(AZURE, cache_dir=tmp_path / "cache", cache_limit="1GiB")
    assert layers(cached) == [CachedStorage, *around, ObjectStorage]


def test_a_path_in_a_remote_mount_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, works = f"30 22 0:40 / {tmp_path} rw - fuse blobfuse2 rw", Path.read_text

    def read_text(path: Path, *args: Any) -> str:
        return table if path == Path("/proc/self/mountinfo") else works(path, *args)

    monkeypatch.setattr(Path, "read_text", read_text)
    assert layers(open_storage(tmp_path))[-1] is MountStorage
    assert layers(open_storage(tmp_path, {"mount": False})) == [LocalStorage]


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("obstore", "ObstoreReader"), ("urllib3", "FsspecReader")],
)
def test_a_backend_by_name(backend: str, kind: str) -> None:
    storage = azure(open_storage(AZURE, {"backend": backend, "account_key": "a2V5"}))
    assert repr(storage).endswith(f", {kind})")
    assert account_of(storage).config["account_key"] == "a2V5"


def test_azure_is_read_by_the_fastest_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for _ in range(2):
        found.append(repr(azure(open_storage(AZURE))).rpartition(" ")[2])
        monkeypatch.setitem(sys.modules, "obstore", None)
    assert found == ["ObstoreReader)", "FsspecReader)"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(LocationError, match="obstore: pip install obstore;") as caught:
        open_storage(AZURE, {"backend": "obstore"})
    assert caught.value.__cause__ is None


def test_writing_without_obstore_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    storage = open_storage(AZURE, {"account_key": "a2V5"})
    with pytest.raises(LocationError, match="pip install obstore") as caught:
        storage.put("manifest.json", b"x", expected=None)
    assert caught.value.__cause__ is None


def test_blobfiles_urls() -> None:
    for storage in (
        open_storage("blobfile+az://acme/box/path"),
        open_storage("az://acme/box/path", {"backend": "blobfile"}),
    ):
        account = account_of(storage)
        assert (account.account, account.bucket, account.root) == ("acme", "box", "path")
        assert "FsspecReader" in repr(azure(storage))
    other = azure(open_storage("blobfile+az://acme/box/path", {"backend": "obstore"}))
    assert "ObstoreReader" in repr(other)


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        (AZURE, {"backend": "urllib2"}, "one of adlfs, blobfile, fsspec, obstore, urllib3"),
        (AZURE, {"backend": "blobfile", "account_key": SECRET}, "its own environment"),
        (AZURE, {"mount": True}, "local paths alone"),
        (
            "az://box/path",
            {},
            (
                r"which account.*https://ACCOUNT\.blob.*account_name.*AZURE_STORAGE_ACCOUNT_NAME.*"
                r"blobfile\+az"
            ),
        ),
        ("az://acme/box/path", {"account_name": "acme"}, "account or the container"),
        (AZURE, {"account_name": "other"}, "of one account"),
        (AZURE, {"connection_string": f"AccountName=other;AccountKey={SECRET}"}, "of one account"),
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
        ("memory://box", {"backend": "obstore"}, "no such backend"),
        ("s3://b/p", {"acess_key_id": SECRET}, "unknown storage option.*acess_key_id"),
        ("s3://b/p", {"backend": "adlfs"}, "no such backend for s3"),
        ("s3://b/p", {"client_options": SECRET}, "unknown storage option.*client_options"),
        ("s3://b/p", {"root_certificate": "/no/file"}, "root_certificate cannot be read"),
        ("gs://b/p", {"key": SECRET}, "unknown storage option.*key"),
        ("gs://b/p", {"anon": True, "bearer_token": SECRET}, "more than one kind"),
        ("https://h/p", {"token": SECRET}, "unknown storage option.*token"),
        ("memory://box", {"mount": True}, "local paths alone"),
        ("records", {"direct": True}, "a local path does not take.*direct"),
        ("records", {"account_key": SECRET}, "a local path does not take.*account_key"),
        ("records", {"deadline": 5}, "a local path does not take.*deadline"),
        ("records", {"mount": True, "account_key": SECRET}, "a mount does not take.*account_key"),
        ("records", {"mount": "perhaps"}, "true or false"),
    ],
)
def test_options_that_will_not_do(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(LocationError, match=says) as caught:
        open_storage(url, options)
    assert SECRET not in str(caught.value)
    assert SECRET not in str(caught.value.__context__)


def test_options_are_split() -> None:
    settings, rest = split_options(
        {"deadline": "5", "max_requests": 4, "key": "x", "mount": "1"}, ""
    )
    assert settings == StorageSettings(mount=True, deadline=5.0, max_requests=4)
    assert rest == {"key": "x"}
    assert split_options({}, "") == (StorageSettings(), {})
    assert split_options({"mount": None}, "")[0].given() == []


def test_nothing_of_azure_is_imported_before_it_is_needed() -> None:
    import subprocess

    code = (
        "import seqrecord, sys; seqrecord.storage.open_storage('https://acme.blob.core.windows.net"
        "/box/p', {'account_key': 'a2V5'}); "
        "sys.exit(sorted({'obstore', 'adlfs', 'blobfile', 'azure.core'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
