"""Credentials that change or expire while a dataset is being read."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seqrecord.errors import AccessError, StorageError
from seqrecord.storage import Storage, open_storage
from seqrecord.storage.ranges import ByteRange
from tests.gcs_stub import GcsStub
from tests.obstore_runtime import obstore_is
from tests.services import Azurite, Moto
from tests.storage_contract import get

DATA = bytes(range(200))
BACKENDS = ("obstore", "urllib3")


@pytest.fixture(autouse=True)
def obstore_reads_all() -> Iterator[None]:
    """Small files too."""
    with obstore_is(used=True):
        yield


@pytest.fixture
def blobs(azurite: Azurite, container: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A container with one file; nothing of the environment opens it."""
    for name in ("ACCOUNT_KEY", "KEY", "SAS_TOKEN", "CONNECTION_STRING"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    azurite.put(container, "set/records/0", DATA)
    return container


def opened(azurite: Azurite, container: str, backend: str, **options: Any) -> Storage:
    where = {"account_name": azurite.account, "endpoint": azurite.endpoint, "deadline": 10}
    return open_storage(f"az://{container}/set", {**where, "backend": backend, **options})


def read(storage: Storage) -> bytes:
    assert storage.size("records/0") == len(DATA)
    return get(storage, "records/0", 0, len(DATA))


def until_it_is_refused(storage: Storage) -> None:
    """Read until the signature has expired, however long that takes."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            storage.read_ranges("records/0", [ByteRange(0, 1)], [memoryview(bytearray(1))])
        except AccessError:
            return
        time.sleep(0.05)
    raise AssertionError("the signature did not expire")


@pytest.mark.parametrize(("where", "backend"), [("environment", "obstore"), ("file", "urllib3")])
def test_a_signature_that_expires_is_read_again(
    azurite: Azurite,
    blobs: str,
    backend: str,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "sas"

    def renew(minutes: float) -> None:
        sas = azurite.sas(blobs, minutes=minutes)
        if where == "environment":
            monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
        else:
            file.write_text(f"?{sas}\n")

    options = {"sas_token_file": str(file)} if where == "file" else {}
    for seconds in (3, 10, 30, 90):  # a slow machine needs more to read before it expires
        renew(seconds / 60)
        storage = opened(azurite, blobs, backend, **options)
        try:
            assert read(storage) == DATA
            break
        except AccessError:
            storage.close()
    else:
        raise AssertionError("the signature expired too early")
    until_it_is_refused(storage)
    with pytest.raises(AccessError, match="SAS"):
        read(storage)
    renew(10)
    assert read(storage) == DATA
    storage.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_function_is_asked_again_after_a_refusal(
    azurite: Azurite, blobs: str, backend: str
) -> None:
    given: list[str] = []

    def credential() -> dict[str, Any]:
        given.append(azurite.sas(blobs, minutes=10 if given else -10))
        return {"sas_token": given[-1], "expires_at": None}

    storage = opened(azurite, blobs, backend, credential_provider=credential)
    assert get(storage, "records/0", 0, len(DATA)) == DATA
    assert len(given) == 2
    storage.close()


def expired(credential: dict[str, Any], asked: list[None]) -> Callable[[], dict[str, Any]]:
    """Gives a credential that expires at once, and notes each time."""

    def give() -> dict[str, Any]:
        asked.append(None)
        return {**credential, "expires_at": datetime.datetime.now(datetime.timezone.utc)}

    return give


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(f"{kind}{backend}", marks=marks)
        for kind, marks in (
            ("azurite", pytest.mark.service),
            ("s3", pytest.mark.service),
            ("gs", ()),
        )
        for backend in ("", "-urllib3")
    ],
)
def test_a_credential_that_expires_is_asked_for_before_it_is_refused(
    kind: str, request: pytest.FixtureRequest
) -> None:
    asked: list[None] = []
    if kind.startswith("azurite"):
        azurite: Azurite = request.getfixturevalue("azurite")
        blobs = request.getfixturevalue("blobs")
        give = expired({"sas_token": azurite.sas(blobs)}, asked)
        storage = opened(azurite, blobs, _backend(kind), credential_provider=give)
    elif kind.startswith("s3"):
        moto: Moto = request.getfixturevalue("moto")
        bucket = moto.new_bucket()
        moto.put(bucket, "set/records/0", DATA)
        keys = {"access_key_id": "a", "secret_access_key": "b", "token": None}
        options = {name: value for name, value in moto.options().items() if name not in keys}
        options["credential_provider"] = expired(keys, asked)
        storage = open_storage(f"s3://{bucket}/set", {**options, "backend": _backend(kind)})
    else:
        with GcsStub() as gcs:
            bucket = gcs.new_bucket()
            gcs.put(bucket, "set/records/0", DATA)
            options = {"base_url": gcs.options()["base_url"]}
            options["credential_provider"] = expired({"token": "T0KEN"}, asked)
            storage = open_storage(f"gs://{bucket}/set", {**options, "backend": _backend(kind)})
            _reads(storage, asked)
        return
    _reads(storage, asked)


def _backend(kind: str) -> str:
    return "urllib3" if kind.endswith("urllib3") else "obstore"


def _reads(storage: Storage, asked: list[None]) -> None:
    for count in (1, 2, 3):
        assert get(storage, "records/0", 0, len(DATA)) == DATA
        assert len(asked) >= count
    storage.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_of_a_signature_that_is_not_there(
    azurite: Azurite, blobs: str, backend: str, tmp_path: Path
) -> None:
    storage = opened(azurite, blobs, backend, sas_token_file=str(tmp_path / "nothing"))
    with pytest.raises(AccessError, match=r"the file of the SAS cannot be read.*nothing"):
        storage.size("records/0")


def test_a_function_that_fails_says_nothing(azurite: Azurite, blobs: str) -> None:
    def fail() -> None:
        raise RuntimeError("S3CRET")

    storage = opened(azurite, blobs, "obstore", credential_provider=fail)
    with pytest.raises(StorageError) as caught:
        read(storage)
    assert "S3CRET" not in str(caught.value)
    assert "RuntimeError" in str(caught.value)
