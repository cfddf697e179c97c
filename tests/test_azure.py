"""Azure Blob, on Azurite: uploads, what a kill leaves of them, and the claim of one writer."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import convert
from seqrecord.errors import DeadlineError, DestinationError, NotFoundError
from seqrecord.storage import Storage, open_storage
from seqrecord.storage.azure import AzureStorage
from seqrecord.storage.azure import lease as lease_module
from seqrecord.storage.azure import upload as upload_module
from seqrecord.storage.azure.account import AzureAccount
from seqrecord.storage.fsspec_reader import FsspecReader
from seqrecord.storage.objects.azure import AzureContainer
from seqrecord.storage.objects.reader import ObstoreReader
from seqrecord.storage.retrying import Retrier
from tests.fault_proxy import FaultProxy, Request, Scripted
from tests.made_source import MadeSource
from tests.services import Azurite
from tests.services.process import wait_for
from tests.storage_contract import DATA, PATH, StorageContract, get, put

SOURCE = MadeSource()
SETTINGS: dict[str, Any] = {"chunk_frames": 4, "record_bytes": 30_000}


def azure_storage(
    azurite: Azurite,
    container: str,
    *,
    root: str = "data/set",
    endpoint: str | None = None,
    retrier: Retrier | None = None,
) -> AzureStorage:
    account = AzureAccount(
        azurite.account, endpoint or azurite.endpoint, container, root, account_key=azurite.key
    )
    shown = f"az://{container}/{root}"
    source = AzureContainer(account)
    quiet = FsspecReader(partial(source.filesystem, 30.0), source.path, shown)
    reader = ObstoreReader(source, shown, quiet=quiet)
    return AzureStorage(account, reader, shown, retrier=retrier)


@pytest.fixture
def storage(azurite: Azurite, container: str) -> Iterator[AzureStorage]:
    storage = azure_storage(azurite, container)
    yield storage
    storage.close()


@pytest.fixture
def kept_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_module, "SAVE_SECONDS", 0.0)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_module, "BLOCK_BYTES", 10_000)


class TestAzureStorage(StorageContract):
    @pytest.fixture
    def storage(self, storage: AzureStorage) -> Storage:
        return storage


class TestAzureStorageInSmallBlocks(StorageContract):
    @pytest.fixture
    def storage(self, storage: AzureStorage, small_blocks: None, kept_at_once: None) -> Storage:
        return storage


class TestAzureStorageOfAWholeContainer(StorageContract):
    @pytest.fixture
    def storage(self, azurite: Azurite, container: str) -> Iterator[Storage]:
        storage = azure_storage(azurite, container, root="")
        yield storage
        storage.close()


class TestOpenedAzureUrl(StorageContract):
    @pytest.fixture
    def storage(self, azurite: Azurite, container: str) -> Iterator[Storage]:
        options = {"connection_string": azurite.connection_string}
        storage = open_storage(f"az://{container}/data/set", options)
        yield storage
        storage.close()


# Checkpoints


def _blocks(storage: AzureStorage, path: str) -> list[str]:
    committed, _ = storage._blob(path).get_block_list("committed")
    return [block.id for block in committed]


@pytest.mark.usefixtures("kept_at_once", "small_blocks")
def test_what_a_checkpoint_keeps_is_neither_seen_nor_sent_again(storage: AzureStorage) -> None:
    upload = storage.create(PATH)
    upload.write(DATA[:25_000])
    upload.checkpoint(b"one")
    kept = _blocks(storage, PATH)
    assert len(kept) == 4  # two of 10,000 bytes, the rest, and the note
    assert storage.list_files("records") == []
    with pytest.raises(NotFoundError):
        storage.size(PATH)
    assert storage.interrupted("records") == [PATH]
    upload.write(DATA[25_000:])
    upload.commit()
    assert _blocks(storage, PATH)[:3] == kept[:3]
    assert kept[3] not in _blocks(storage, PATH)
    assert storage.interrupted("records") == []
    assert storage.list_files("records") == [PATH]
    assert get(storage, PATH) == DATA


@pytest.mark.usefixtures("small_blocks")
def test_checkpoints_soon_after_one_another_cost_nothing(storage: AzureStorage) -> None:
    upload = storage.create(PATH)
    for i in range(10):
        upload.write(b"x")
        upload.checkpoint(b"%d" % i)
    assert storage.interrupted("records") == []
    storage.close()  # as an interrupt does
    cut = storage.reopen(PATH)
    assert cut.checkpoints == [(i + 1, b"%d" % i) for i in range(10)]


@pytest.mark.usefixtures("kept_at_once", "small_blocks")
@pytest.mark.parametrize("offset", [0, 1, 9_999, 10_000, 15_000, 24_999, 25_000, 31_000, 47_000])
def test_rewound_to_anywhere(storage: AzureStorage, offset: int) -> None:
    upload = storage.create(PATH)
    upload.write(DATA[:25_000])
    upload.checkpoint(b"one")
    upload.write(DATA[25_000:47_000])
    assert upload.rewind(offset)
    assert upload.tell() == offset
    upload.write(b"new")
    upload.checkpoint(b"two")
    storage.close()
    cut = storage.reopen(PATH)
    expected = DATA[:offset] + b"new"
    assert cut.checkpoints[-1] == (len(expected), b"two")
    assert cut.upload.tell() == len(expected)
    cut.upload.write(b"!")
    cut.upload.commit()
    assert get(storage, PATH) == expected + b"!"


@pytest.mark.usefixtures("kept_at_once")
def test_an_aborted_upload_takes_what_was_kept_with_it(storage: AzureStorage) -> None:
    upload = storage.create(PATH)
    upload.write(DATA)
    upload.checkpoint(b"one")
    upload.abort()
    assert storage.interrupted("records") == []
    with pytest.raises(NotFoundError):
        storage.reopen(PATH)
    again = storage.create(PATH)
    again.write(b"again")
    again.commit()
    assert get(storage, PATH) == b"again"


@pytest.mark.usefixtures("kept_at_once")
def test_a_file_that_is_replaced_stays_until_the_commit(storage: AzureStorage) -> None:
    put(storage, "manifest.json", b"old")
    for end in ("abort", "leave", "commit"):
        upload = storage.create("manifest.json", replace=True)
        upload.write(DATA)
        upload.checkpoint(b"note")
        assert get(storage, "manifest.json") == b"old"
        if end == "abort":
            upload.abort()
        elif end == "leave":
            storage.close()
        else:
            upload.commit()
            assert get(storage, "manifest.json") == DATA


@pytest.mark.usefixtures("kept_at_once")
def test_a_writer_that_was_thought_dead_cannot_go_on(
    storage: AzureStorage, azurite: Azurite
) -> None:
    upload = storage.create(PATH)
    upload.write(b"mine")
    upload.checkpoint(b"one")
    other = pickle.loads(pickle.dumps(storage))
    cut = other.reopen(PATH)
    upload.write(b"late")
    with pytest.raises(DestinationError, match="another writer has changed"):
        upload.commit()
    cut.upload.commit()
    assert get(storage, PATH) == b"mine"
    other.close()


# Blocks and threads


class _Blob:
    """Counts what is sent at the same time, and lets a block end when it is told to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sending: dict[str, int] = {}
        self.most_blocks = self.most_bytes = 0
        self.staged: dict[str, bytes] = {}
        self.committed: bytes | None = None

    def stage_block(self, name: str, data: bytes, length: int) -> None:
        assert len(data) == length
        with self.lock:
            self.sending[name] = length
            self.most_blocks = max(self.most_blocks, len(self.sending))
            self.most_bytes = max(self.most_bytes, sum(self.sending.values()))
        time.sleep(0.005)
        with self.lock:
            del self.sending[name]
            self.staged[name] = data

    def commit_block_list(self, blocks: list[Any], **_: Any) -> dict[str, str]:
        assert not self.sending
        self.committed = b"".join(self.staged[block.id] for block in blocks)
        return {"etag": "1"}


def _upload(blob: Any, **changes: Any) -> upload_module.AzureUpload:
    more = {
        "replace": False,
        "retrier": Retrier(deadline=0),
        "check": lambda: None,
        "ended": lambda _: None,
        **changes,
    }
    return upload_module.AzureUpload(PATH, blob, f"az://x/{PATH}", **more)


def _senders() -> int:
    return sum(thread.name.startswith("seqrecord-upload") for thread in threading.enumerate())


@pytest.mark.parametrize("step", [700, 10_000, 100_000])
@pytest.mark.usefixtures("small_blocks")
def test_memory_and_threads_are_bounded_and_end_with_the_upload(step: int) -> None:
    blob = _Blob()
    upload = _upload(blob)
    for start in range(0, len(DATA), step):
        upload.write(DATA[start : start + step])
        held = len(upload._tail) + sum(not future.done() for future in upload._sending) * 10_000
        assert held <= (upload_module.IN_FLIGHT + 1) * 10_000
    assert 0 < _senders() <= upload_module.IN_FLIGHT
    upload.commit()
    assert blob.committed == DATA
    assert 1 < blob.most_blocks <= upload_module.IN_FLIGHT
    assert blob.most_bytes <= upload_module.IN_FLIGHT * 10_000
    assert _senders() == 0


@pytest.mark.parametrize("end", ["abort", "leave", "drop"])
@pytest.mark.usefixtures("small_blocks")
def test_threads_end_with_an_upload_that_is_given_up(end: str) -> None:
    upload = _upload(_Blob())
    upload.write(DATA[:50_000])
    if end == "drop":
        threads = list(upload._pool._threads)
        del upload
        for thread in threads:
            thread.join(10)
    else:
        getattr(upload, end)()
    assert _senders() == 0


@pytest.mark.usefixtures("small_blocks")
def test_a_failed_block_ends_the_upload_and_keeps_its_reason() -> None:
    class Full(_Blob):
        def stage_block(self, name: str, data: bytes, length: int) -> None:
            raise ConnectionResetError(104, "reset")

    upload = _upload(Full())
    for _ in range(2):
        with pytest.raises(DeadlineError, match="1 attempt in"):
            upload.write(DATA)
    assert not upload.rewind(0)
    with pytest.raises(DeadlineError):
        upload.commit()
    assert _senders() == 0
    upload.abort()


def test_blocks_grow_before_azure_takes_no_more_of_them() -> None:
    upload = _upload(_Blob())
    sizes = []
    for count in (0, 8_191, 8_192, 20_000, 49_999):
        upload._blocks = [upload_module._Block("", 0)] * count
        sizes.append(upload._block_bytes() >> 20)
    assert sizes == [8, 8, 16, 32, 256]
    upload._blocks = []
    upload.abort()


def test_nothing_goes_through_a_local_file(
    storage: AzureStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened: list[str] = []
    watching = True

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open" and args[1] and set("wax+") & set(args[1]):
            opened.append(str(args[0]))

    sys.addaudithook(watch)  # for good: there is no way to take it back
    try:
        convert(SOURCE, storage, workers=1, **SETTINGS)
    finally:
        watching = False
    assert opened == []
    assert list(tmp_path.iterdir()) == []


# Requests that fail


def _puts(*parameters: str) -> Any:
    def chosen(request: Request) -> bool:
        query = request.path.partition("?")[2]
        return request.method == "PUT" and all(part in query for part in parameters)

    return chosen


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[FaultProxy]:
    with FaultProxy(azurite.host, retry_after=0) as proxy:
        yield proxy


@pytest.fixture
def faulty(azurite: Azurite, container: str, proxy: FaultProxy) -> Iterator[AzureStorage]:
    endpoint = f"http://{proxy.host}/{azurite.account}"
    retrier = Retrier(deadline=60, sleep=lambda _: None)
    storage = azure_storage(azurite, container, endpoint=endpoint, retrier=retrier)
    yield storage
    storage.close()


@pytest.mark.usefixtures("small_blocks", "kept_at_once")
@pytest.mark.parametrize("parameter", ["comp=block&", "comp=blocklist", ""])
@pytest.mark.parametrize("kind", ["reset", "lost", "503"])
def test_an_upload_repeats_what_fails_and_writes_it_once(
    faulty: AzureStorage, proxy: FaultProxy, parameter: str, kind: str
) -> None:
    proxy.fault = Scripted([kind, None, kind, kind, None, None, kind], _puts(parameter))
    upload = faulty.create(PATH)
    upload.write(DATA[:25_000])
    upload.checkpoint(b"one")
    upload.write(DATA[25_000:])
    upload.commit()
    assert proxy.faults[kind] >= 2
    assert faulty.counters()["retries"] >= 2
    proxy.fault = None
    assert get(faulty, PATH) == DATA


@pytest.mark.parametrize("kind", ["reset", "lost", "503"])
def test_a_claim_repeats_what_fails(faulty: AzureStorage, proxy: FaultProxy, kind: str) -> None:
    proxy.fault = Scripted([kind, None, kind, None, kind])
    lock = faulty.lock()
    assert proxy.faults[kind] >= 2
    proxy.fault = None
    with pytest.raises(DestinationError, match="another writer"):
        faulty.lock()
    lock.release()


def test_a_server_that_is_gone_is_a_deadline_error(
    azurite: Azurite, container: str, proxy: FaultProxy
) -> None:
    storage = azure_storage(
        azurite, container, endpoint=f"http://{proxy.host}/acme", retrier=Retrier(deadline=0.3)
    )
    upload = storage.create(PATH)
    upload.write(b"x")
    proxy.close()
    with pytest.raises(DeadlineError, match=r"attempts? in 0 s.*00000-ab\.seqrec"):
        upload.commit()
    with pytest.raises(DeadlineError):
        storage.lock()
    storage.close()


@pytest.mark.usefixtures("small_blocks")
def test_close_waits_for_no_server_that_is_gone(
    azurite: Azurite, container: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_module, "LEAVE_SECONDS", 0.1)
    storage = azure_storage(azurite, container, endpoint=f"http://{proxy.host}/acme")
    upload = storage.create(PATH)
    proxy.close()
    upload.write(DATA[:25_000])
    upload.checkpoint(b"one")
    wait_for(lambda: storage.counters()["retries"] >= 2)
    started = time.monotonic()
    storage.close()
    assert time.monotonic() - started < 10  # of 120
    assert _senders() == 0


def test_a_container_that_is_not_there_is_named(azurite: Azurite) -> None:
    storage = azure_storage(azurite, "no-such-container")
    for action in (storage.lock, lambda: put(storage, PATH, b"x")):
        with pytest.raises(NotFoundError, match=r"no such container.*az://no-such-container"):
            action()
    storage.close()


# The claim


def _break_claim(storage: AzureStorage) -> None:
    """As the time does after a kill."""
    from azure.storage.blob import BlobLeaseClient

    blob = storage._blob(".lock")
    BlobLeaseClient(blob).break_lease(lease_break_period=0)


def test_a_second_writer_is_refused(storage: AzureStorage) -> None:
    other = pickle.loads(pickle.dumps(storage))
    lock = storage.lock()
    with pytest.raises(DestinationError, match=r"another writer.*within 60 seconds"):
        other.lock()
    with pytest.raises(DestinationError, match="another writer"):
        convert(SOURCE, other, workers=1)
    lock.release()
    second = other.lock()
    lock.release()  # once more: it is not this one's any longer
    with pytest.raises(DestinationError):
        storage.lock()
    second.release()
    assert not storage._blob(".lock").exists()
    other.close()


def test_a_lost_claim_ends_the_next_write(storage: AzureStorage) -> None:
    other = pickle.loads(pickle.dumps(storage))
    lock = storage.lock()
    upload = storage.create(PATH)
    upload.write(DATA)
    _break_claim(storage)
    taken = other.lock()
    lock._renewed()  # type: ignore[attr-defined] # as its thread does, sooner or later
    with pytest.raises(DestinationError, match=r"lost its claim.*--resume"):
        upload.commit()
    with pytest.raises(DestinationError, match="lost its claim"):
        storage.create("manifest.json", replace=True)
    with pytest.raises(DestinationError, match="lost its claim"):
        storage.remove("records/a")
    lock.release()
    with pytest.raises(DestinationError):  # it is still the other one's
        storage.lock()
    taken.release()
    other.close()


def test_a_claim_that_nobody_took_meanwhile_goes_on(
    storage: AzureStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = storage.lock()
    lock._until = time.monotonic() - 1  # type: ignore[attr-defined] # suspended for a minute
    put(storage, PATH, b"x")
    assert lock._until > time.monotonic() + 30  # type: ignore[attr-defined]
    lock.release()
    put(storage, "records/unlocked", b"x")


@pytest.mark.slow
def test_a_claim_runs_out_by_itself(storage: AzureStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 15)  # the shortest that Azure grants
    lock = storage.lock()
    lock._stop.set()  # type: ignore[attr-defined] # as a kill does
    other = pickle.loads(pickle.dumps(storage))
    taken: list[Any] = []

    def try_it() -> bool:
        with contextlib.suppress(DestinationError):
            taken.append(other.lock())
        time.sleep(0.2)
        return bool(taken)

    started = time.monotonic()
    wait_for(try_it)
    assert 10 < time.monotonic() - started < 25
    taken[0].release()
    other.close()


class _Leased:
    def __init__(self) -> None:
        self.renewals = threading.Semaphore(0)
        self.failure: Exception | None = None
        self.deleted = False

    def acquire_lease(self, seconds: int, name: str) -> _Leased:
        return self

    def renew(self) -> None:
        self.renewals.release()
        if self.failure is not None:
            raise self.failure

    def delete_blob(self, lease: object) -> None:
        self.deleted = True


def test_a_claim_is_renewed_until_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.04)
    blob = _Leased()
    lease = lease_module.AzureLease(blob, "az://x", Retrier(deadline=0))
    for _ in range(3):
        assert blob.renewals.acquire(timeout=10)
    blob.failure = ConnectionResetError(104, "reset")  # tried again
    for _ in range(3):
        assert blob.renewals.acquire(timeout=10)
    blob.failure = None
    assert blob.renewals.acquire(timeout=10)
    assert blob.renewals.acquire(timeout=10)
    lease.check()
    lease.release()
    assert not lease._thread.is_alive()
    assert blob.deleted


def test_a_claim_that_cannot_be_renewed_in_time_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.04)
    blob = _Leased()
    blob.failure = ConnectionResetError(104, "reset")
    lease = lease_module.AzureLease(blob, "az://x", Retrier(deadline=0))
    while time.monotonic() < lease._until:
        assert blob.renewals.acquire(timeout=10)
    with pytest.raises(DestinationError, match="lost"):
        lease.check()
    lease.release()
    assert not blob.deleted


# A kill

_SCRIPT = """
import sys
from seqrecord import convert
from seqrecord.storage.azure import upload as upload_module
from tests.made_source import EndlessSource

upload_module.SAVE_SECONDS = 0.0

if __name__ == "__main__":
    convert(
        EndlessSource(folder=sys.argv[4], stops=True), sys.argv[1], workers=int(sys.argv[3]),
        chunk_frames=4, record_bytes=30_000, storage_options={"connection_string": sys.argv[2]},
    )
"""


def _kill_at_work(storage: AzureStorage, command: list[str]) -> None:
    """Start it, kill it as soon as it has kept something, and wait for its workers to notice."""
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        wait_for(lambda: process.poll() is not None or bool(storage.interrupted("records")))
        assert process.poll() is None, "done before anything was seen"
    finally:
        process.kill()
        process.wait()

    def all_ended() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(all_ended)


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_resumed(azurite: Azurite, container: str, tmp_path: Path, workers: int) -> None:
    storage = azure_storage(azurite, container)
    url, options = f"az://{container}/data/set", {"connection_string": azurite.connection_string}
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    (tmp_path / "told").mkdir()
    text, told = azurite.connection_string, str(tmp_path / "told")
    command = [sys.executable, str(script), url, text, str(workers), told]
    _kill_at_work(storage, command)
    with pytest.raises(NotFoundError, match="no dataset here"):
        seqrecord.open(url, storage_options=options)
    with pytest.raises(DestinationError, match="within 60 seconds"):
        convert(SOURCE, url, mode="resume", workers=1, storage_options=options, **SETTINGS)
    _break_claim(storage)
    report = convert(SOURCE, url, mode="resume", workers=1, storage_options=options, **SETTINGS)
    assert report.skipped  # what had ended was kept
    local = convert(SOURCE, tmp_path / "local", workers=1, **SETTINGS)
    assert report.manifest.fingerprint == local.manifest.fingerprint
    client = storage._state.get().client()
    # Blocks of an upload that was never kept are seen by nobody, and Azure drops them in a week.
    names = {blob.name for blob in client.list_blobs()}
    paths = {file.path for file in report.manifest.record_files}
    assert {name for name in names if name.endswith(".seqrec")} == {f"data/set/{p}" for p in paths}
    assert "data/set/.lock" not in names
    assert storage.interrupted("records") == []
    assert seqrecord.verify(url, deep=True, storage_options=options).ok
    storage.close()


def test_many_uploads_at_once(storage: AzureStorage) -> None:
    uploads = [storage.create(f"records/{i}") for i in range(6)]
    for start in range(0, len(DATA), 10_000):
        for upload in uploads:
            upload.write(DATA[start : start + 10_000])
    for upload in uploads:
        upload.commit()
    assert all(get(storage, f"records/{i}") == DATA for i in range(6))


# Forking with threads is what this is about.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_its_own(storage: AzureStorage) -> None:
    lock = storage.lock()
    upload = storage.create(PATH)
    upload.write(DATA)
    upload.checkpoint(b"one")
    put(storage, "records/other", DATA)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            signal.alarm(20)
            assert storage.list_files("records") == ["records/other"]
            assert get(storage, "records/other", 5, 50) == DATA[5:50]
            put(storage, "records/child", b"x")
            storage.close()  # neither leaves the parent's uploads nor
            lock.release()  # ends its claim
            code = 0
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert storage.interrupted("records") == []
    upload.commit()
    assert get(storage, PATH) == DATA
    other = pickle.loads(pickle.dumps(storage))
    with pytest.raises(DestinationError):
        other.lock()
    assert other.list_files("records") == [PATH, "records/child", "records/other"]
    lock.release()
    other.close()


def test_a_client_is_made_anew_after_close(storage: AzureStorage) -> None:
    mine = storage._state.get().client()
    assert storage._state.get().client() is mine
    storage.close()
    assert storage._state.get().client() is not mine
    assert storage.list_files("records") == []
