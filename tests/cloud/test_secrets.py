"""No key, token or signature appears in printed, logged or saved text.

Every credential contains `MARK` or is searched for itself. Pickles contain credentials, since
worker processes need them.
"""

from __future__ import annotations

import base64
import itertools
import json
import logging
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

import pytest
from click.testing import CliRunner

import seqrecord
from seqrecord import EngineOptions, SeqRecordError, StorageError
from seqrecord.errors import AccessError
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.url import parse_location
from tests.kit.command_line import main
from tests.kit.made_source import MadeSource
from tests.kit.services import Azurite, need_azurite
from tests.store.storage_contract import get, put

MARK = "MARKEDS3CRET"
KEY = base64.b64encode((MARK * 4).encode()).decode()  # MARK is in the bytes, KEY in texts
ENVIRONMENT = ("ACCOUNT", "ACCOUNT_NAME", "ACCOUNT_KEY", "KEY", "CONNECTION_STRING", "SAS_TOKEN")


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        caplog.set_level(logging.DEBUG, name)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    need_azurite()
    service = Azurite(tmp_path_factory.mktemp("azurite"), key=KEY)
    yield service
    service.stop()


@dataclass(frozen=True)
class Given:
    """A location, its credential, and the `secrets` to search for."""

    url: str
    options: dict[str, Any]
    secrets: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        return [f"--storage-option={key}={value}" for key, value in self.options.items()]


def _forms(text: str) -> tuple[str, ...]:
    return tuple({text, quote(text, safe=""), unquote(text), MARK})


def given(kind: str, service: Azurite, container: str, monkeypatch: pytest.MonkeyPatch) -> Given:
    """A location with a valid or invalid credential, which may be in the environment."""
    endpoint = service.endpoint
    az, wrong_key = f"az://{container}/set", base64.b64encode((MARK * 5).encode()).decode()
    https = f"https://{service.account}.blob.core.windows.net/{container}/set"
    account = {"account_name": service.account, "endpoint": endpoint}
    if "SAS" in kind:
        token = service.sas(container, minutes=-60 if "expired" in kind else 60)
        if "wrong" in kind:
            token = token[: token.index("sig=")] + f"sig={MARK}%3D"
        forms = _forms(parse_qs(token)["sig"][0])
        if kind.endswith("URL"):
            return Given(f"{https}?{token}", {"endpoint": endpoint}, forms)
        if kind.endswith("environment"):
            monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", token)
            return Given(az, account, forms)
        return Given(az, {**account, "sas_token": token}, forms)
    key = wrong_key if "wrong" in kind else service.key
    if "connection string" in kind:
        text = f"AccountName={service.account};AccountKey={key};BlobEndpoint={endpoint};"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        return Given(az, {}, _forms(key))
    if kind.endswith("environment"):
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", key)
        return Given(az, account, _forms(key))
    return Given(az, {**account, "account_key": key}, _forms(key))


RIGHT = ["key", "key in the environment", "connection string", "SAS", "SAS in the environment"]
RIGHT += ["SAS in the URL"]
WRONG = ["wrong key", "wrong connection string", "wrong SAS", "wrong SAS in the URL", "expired SAS"]


def texts_of(error: BaseException) -> Iterator[str]:
    """All texts of an error and of the errors it refers to."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        item = waiting.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        waiting += [item.__cause__, item.__context__]
        yield from traceback.format_exception(item)
        yield from (str(item), repr(item), repr(vars(item)), repr(item.args))
        yield from getattr(item, "__notes__", [])
    with suppress(Exception):
        yield repr(pickle.dumps(error))


def storage_texts(storage: Storage) -> Iterator[str]:
    """All texts of a storage and its inner storages."""
    yield from (repr(storage), str(storage), storage.url, repr(storage.counters()))
    if isinstance(storage, StorageWrapper):
        yield from storage_texts(storage.inner)
    yield repr(vars(storage).get("_reader"))


def check(given: Given, texts: Iterable[str], caplog: pytest.LogCaptureFixture) -> None:
    """Neither the texts nor the log contain the secrets."""
    logged = [
        f"{record.name}: {record.getMessage()} {record.msg} {record.args} {record.exc_text}"
        for record in caplog.records
    ]
    found = [
        text[max(0, text.index(secret) - 200) :][:500]
        for text in [*texts, *logged, caplog.text]
        for secret in given.secrets
        if secret in text
    ]
    assert found == []


def actions(storage: Storage) -> list[Callable[[], object]]:
    path = "records/a.seqrec"
    return [
        partial(storage.size, "manifest.json"),
        partial(storage.files, "records"),
        partial(storage.files, "../records"),
        partial(storage.read_whole, "manifest.json", 100),
        partial(storage.put, "manifest.json", b"x", expected=None),
        partial(storage.remove, path),
        partial(get, storage, path, 0, 10),
        partial(get, storage, path, 0, 2 << 20),  # large enough for the reading client
        partial(put, storage, "records/new.seqrec", b"x" * 100),
    ]


def failures(storage: Storage) -> Iterator[StorageError]:
    for action in actions(storage):
        try:
            action()
        except StorageError as error:
            yield error


def run(*words: str) -> list[str]:
    """All output of a command."""
    result = CliRunner().invoke(main, list(words))
    return [result.output, *([] if result.exception is None else texts_of(result.exception))]


@pytest.mark.service
@pytest.mark.parametrize("kind", WRONG)
def test_a_service_that_refuses(
    service: Azurite,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    where = given(kind, service, service.new_container(), monkeypatch)
    storage = open_storage(where.url, {**where.options, "deadline": 20})
    errors = list(failures(storage))
    assert len(errors) == len(actions(storage))
    assert sum(isinstance(error, AccessError) for error in errors) == len(errors) - 1  # `../`
    texts = [text for error in errors for text in texts_of(error)]
    storage.close()
    check(where, [*texts, *storage_texts(storage)], caplog)


LOGGED = {
    "azure.core.pipeline.policies.http_logging_policy": ("GET https://h/a?sig={}&x=1", "sig=…&x"),
    "urllib3.connectionpool": ("GET https://me:{}@h/a", "//…@h"),
    "urllib3.response": ("GET http://user:it's{}@host/", "//…@host"),
    "aiohttp.client": ("AccountName=a;AccountKey={};x", "AccountKey=…;"),
    "google.auth": ("Authorization: Bearer {}", "Bearer …"),
    "botocore.endpoint": ("x-amz-security-token:{}", "x-amz-security-token:…"),
    "s3fs": ("{{'aws_secret_access_key': '{}'}}", "_key': …"),
}


def test_logs_of_client_libraries_have_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """After a storage has made a client; also in arguments, tracebacks and quoted passwords."""
    for logger in LOGGED:
        logging.getLogger(logger)  # created before the client
    storage = open_storage("memory://secrets")
    storage.files("records")
    for logger, (text, clean) in LOGGED.items():
        caplog.set_level(logging.DEBUG, logger)
        caplog.clear()
        logging.getLogger(logger).debug("%s", text.format(MARK))
        assert clean in caplog.text
        try:
            raise OSError(f"http://user:it's{MARK}@host/")
        except OSError as error:
            logging.getLogger(logger).debug("GET %r", str(error), exc_info=True)
        assert "user" not in caplog.text
        assert MARK not in caplog.text
    storage.close()


@pytest.mark.service
@pytest.mark.parametrize("kind", RIGHT)
def test_a_dataset_with_valid_credentials(
    service: Azurite,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    kind: str,
) -> None:
    container = service.new_container()
    where = given(kind, service, container, monkeypatch)
    url, options = where.url, where.options
    more: dict[str, Any] = {"storage_options": options}
    settings: dict[str, Any] = {"workers": 1, "chunk_frames": 4, "max_file_size": 30_000}
    report = seqrecord.convert(MadeSource(), url, **settings, **more)
    texts = [repr(report), repr(parse_location(where.url)), str(parse_location(where.url))]
    texts += storage_texts(open_storage(url, options))
    with seqrecord.open(url, **more) as dataset:
        summary = seqrecord.summarize(dataset)
        texts += [repr(dataset), str(dataset), dataset.url]
        texts += [str(summary), json.dumps(summary.to_json())]
    for error in (
        lambda: seqrecord.convert(MadeSource(), url, **settings, **more),
        lambda: seqrecord.SeqRecordPipe(seqrecord.open(url, **more), clip_len=1000),
        lambda: seqrecord.open(url, features=["nothing"], **more),
    ):
        with pytest.raises(SeqRecordError) as caught:
            error()
        texts += texts_of(caught.value)
    trace, cache = tmp_path / "trace.json", tmp_path / "cache"
    stream = seqrecord.SeqRecordIterableDataset(
        seqrecord.open(url, cache_dir=cache, cache_limit="1GiB", **more),
        clip_len=2,
        engine=EngineOptions(num_threads=2, trace=trace),
    )
    for _ in stream:
        texts += [json.dumps(stream.state_dict())]
    texts += [repr(stream), str(stream), json.dumps(stream.stats(), default=str)]
    for make in (seqrecord.SeqRecordPipe, seqrecord.SeqRecordMapDataset):
        pipe = make(seqrecord.open(url, **more), clip_len=2, features=["image"])
        texts += [repr(pipe), str(pipe)]
    texts += [str(seqrecord.verify(url, deep=True, **more)), repr(seqrecord.reindex(url, **more))]
    texts += [repr(file.read_bytes()) for file in tmp_path.rglob("*") if file.is_file()]
    texts += [str(path) for path in tmp_path.rglob("*")]  # file names are a cache's index
    with service.client() as client:
        blobs = client.get_container_client(container)
        for blob in blobs.list_blobs(include=["metadata"]):
            texts += [blob.name, str(blob.metadata), repr(blobs.download_blob(blob.name).readall())]
    check(where, texts, caplog)
    assert trace.exists()
    [place] = cache.glob("*/where")
    assert "set" in place.read_text()


@pytest.mark.service
@pytest.mark.parametrize("kind", ["key", "SAS in the URL", *WRONG])
def test_printed_text_of_commands(
    service: Azurite,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    kind: str,
) -> None:
    where = given(kind, service, service.new_container(), monkeypatch)
    (tmp_path / "tree" / "episode").mkdir(parents=True)
    (tmp_path / "tree" / "episode" / "pose.txt").write_text("1 2 3\n4 5 6\n")
    texts: list[str] = []
    for debug in ([], ["--debug"]):
        words = [*where.words, *debug]
        texts += run(
            "write", "--src", str(tmp_path / "tree"), "--dst", where.url, "--workers=1", *words
        )
        for command in ("info", "verify", "reindex", "clean", "bench"):
            extra = ["--clip-len=1"] if command == "bench" else []
            texts += run(command, where.url, *extra, *words)
        texts += run("info", where.url, "--storage-option", f"acount_key={MARK}", *words)
        texts += run("info", where.url, "--storage-option", MARK, *words)
    assert any("error" in text for text in texts)
    check(where, texts, caplog)


WRONG_PLACES: list[tuple[Any, dict[str, Any]]] = [
    (f"https://acme.blob.core.windows.net:9/box/path?sig={MARK}", {}),
    (f"https://acme.blob.core.windows.net/box/path?sig={MARK}#x", {}),
    (f"https://me:{MARK}@acme.blob.core.windows.net/box/path", {}),
    (f"http://user:{MARK}@127.0.0.1:9/path", {}),
    (f"http://user:{MARK}\\@127.0.0.1:9/path", {}),
    (f"http://user:it's{MARK}@127.0.0.1:9/path", {}),
    (f"http://user:{MARK}@[::1]:9/path", {}),
    (f"http://user:{MARK}@", {}),
    (f"hf://{MARK}@datasets/org/name", {}),
    (f"hf://user:{MARK}@datasets/org/name", {}),
    (f"hf://datasets/org/name?token={MARK}", {}),
    ("hf://datasets/org/name", {"endpoint": f"http:///user:{MARK}@h"}),
    ("s3://bucket/path", {"endpoint": f"http:///user:{MARK}@h", "anon": True}),
    ("s3://bucket/path", {"endpoint": f"http://user:{MARK}/x@127.0.0.1:9", "anon": True}),
    ("az://box/path", {"account_name": "acme", "endpoint": f"http://user:{MARK}/x@h"}),
    (f"ftp://user:x/{MARK}@host/path", {}),
    (f"http://user:{MARK}?x@127.0.0.1:9/path", {}),
    (f"http://user:x#{MARK}@127.0.0.1:9/path", {}),
    (f"http://user:x@y/{MARK}@127.0.0.1:9/path", {}),
    (f"zip://a::http://user:{MARK}@host/path", {}),
    (f"s3://KEY:x/{MARK}@bucket/path", {}),
    ({"url": (f"https:/acme.blob.core.windows.net/box?sig='{MARK}",)}, {}),
    (f"http://user:{MARK}@host/\0", {}),
    (f"s3://bucket/path?token={MARK}", {}),
    ("memory://box/path", {"token": MARK}),
    ("az://box/path", {"account_key": MARK}),
    ("az://box/path", {"account_name": "acme", "account_key": f"not base64: {MARK}"}),
]


def test_locations_and_options_that_are_wrong(caplog: pytest.LogCaptureFixture) -> None:
    for url, given in WRONG_PLACES:
        options = {**given, "deadline": 0.02}
        texts: list[str] = []
        try:
            storage = open_storage(url, options)
        except SeqRecordError as error:
            texts += texts_of(error)
        else:
            texts += storage_texts(storage)
            texts += [text for error in failures(storage) for text in texts_of(error)]
            storage.close()
        with pytest.raises(SeqRecordError) as caught:
            seqrecord.open(url, storage_options=options)
        texts += texts_of(caught.value)
        check(Given(url, options, (MARK,)), texts, caplog)
        caplog.clear()


def test_credentials_of_azure_identity_that_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from azure import identity
    from azure.core.exceptions import ClientAuthenticationError

    class Failing:
        def __init__(self, **given: object) -> None:
            made.append((type(self).__name__, given))

        def get_token(self, *_: object, **__: object) -> None:
            raise ClientAuthenticationError(f"client_secret={MARK} {made}")

    made: list[tuple[str, dict[str, Any]]] = []
    names = ("DefaultAzureCredential", "ClientSecretCredential")
    for name in names:
        monkeypatch.setattr(identity, name, type(name, (Failing,), {}))
    secret = {"tenant_id": "t", "client_id": "c", "client_secret": MARK}
    chosen = {"managed_identity_client_id": "c", "workload_identity_client_id": "c"}
    for more, name, wanted in (
        ({}, names[0], {}),
        ({"client_id": "c"}, names[0], chosen),
        (secret, names[1], secret),
    ):
        # Tokens are sent by https only; here the credential fails before.
        options = {"account_name": "acme", "endpoint": "https://127.0.0.1:9"}
        storage = open_storage("az://box/path", {**options, **more, "deadline": 0.1})
        errors = list(failures(storage))
        assert sum(isinstance(error, AccessError) for error in errors) == len(errors) - 1
        texts = [text for error in errors for text in texts_of(error)]
        storage.close()
        assert (made[-1][0], made[-1][1] | wanted) == (name, made[-1][1])
        check(Given("", {}, (MARK,)), [*texts, *storage_texts(storage)], caplog)


# Misspelt URLs

USER = f"user:{MARK}"
SCHEMES = ["http", "https", "s3", "gs", "az", "abfs", "ftp", "sftp", "hf", "hdfs", "webdav", "smb"]
BROKEN = [
    "{scheme}:///{user}@host/path",
    "{scheme}:////{user}@host/path",
    "{scheme}:///{mark}@host/path",
    "{scheme}:/{user}@host/path",
    "{scheme}:{user}@host/path",
    "{scheme}//{user}@host/path",
    "{scheme}///{user}@host/path",
    "{scheme}/{user}@host/path",
    "{scheme}:\\\\{user}@host/path",
    "{scheme}\\\\{user}@host\\path",
    "{scheme}://{user}%40host/path",
    "{scheme}://user%3A{mark}%40host/path",
    "{scheme}://{user}",
    "{scheme}://{user}/host",
    "{scheme}://?{user}@host/path",
    "{scheme}://{user}/x@host/path",
    "{scheme}://{user}@[::1/path",
    "{scheme}://host/path?sig={mark}",
    "{scheme}:host/path?sig={mark}",
    "{scheme}//host/path?x=1&sig={mark}",
    "{scheme}:///host/path?X-Amz-Signature={mark}",
    " {scheme}://{user}@host/path",
]


@pytest.mark.parametrize("kind", [str, str.upper, str.title, Path], ids=lambda kind: kind.__name__)
def test_misspelt_urls(
    kind: Callable[[str], Any], thorough: bool, caplog: pytest.LogCaptureFixture
) -> None:
    schemes = SCHEMES if thorough else SCHEMES[:2] if kind is str else SCHEMES[:1]
    for form, scheme in itertools.product(BROKEN, schemes):
        written = str(scheme) if kind is Path else kind(scheme)
        text = form.format(scheme=written, user=USER, mark=MARK)
        if kind is not Path or text.removeprefix(" ").startswith(f"{scheme}:/"):
            _check_text(Path(text) if kind is Path else text, caplog)
    for text in (
        f"{USER}@host/path",
        f"//{USER}@h",
        f"host.example/box?sig={MARK}",
        f"a//{USER}@b",
    ):
        if kind is str:
            _check_text(text, caplog)


def _check_text(location: Any, caplog: pytest.LogCaptureFixture) -> None:
    texts: list[str] = []
    for action in (open_storage, seqrecord.open):
        with pytest.raises(SeqRecordError) as caught:
            action(location)
        texts += texts_of(caught.value)
    check(Given("", {}, (MARK,)), texts, caplog)
    caplog.clear()


def test_names_of_folders_that_are_no_urls(tmp_path: Path) -> None:
    for name in ("a:b", "x@y", "run 1: a@b", "2025-01-01T10:00:00", "http", "s3/x"):
        for text in (str(tmp_path / name), f"./{name}", *([] if "@b" in name else [name])):
            assert open_storage(text).url.endswith(name)
        assert open_storage(tmp_path / name).url.endswith(name)


def test_commands_show_no_secrets_of_misspelt_urls() -> None:
    texts = [f"{start}{USER}@host/x" for start in ("http:///", "http//", "https;//", "htt ps//")]
    texts += [f"s3./{USER}@host", f"https:host/x?sig={MARK}"]
    for text in texts:
        for command in ("info {}", "verify {}", "write --src {} --dst out"):
            shown = run(*(word.format(text) for word in command.split()))
            assert any("error" in each for each in shown)
            assert not any(MARK in each for each in shown)
    output = CliRunner().invoke(main, ["info", f"--https://{USER}@host/x", "--debug"]).output
    assert "No such option" in output
    assert MARK not in output
