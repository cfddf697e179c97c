from __future__ import annotations

import pickle
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord.errors import LocationError
from seqrecord.storage import LocalStorage, open_storage, parse_location
from tests.datasets import write_small

SECRET = "MARKED-S3CRET"


@pytest.mark.parametrize(
    ("url", "protocol", "root"),
    [
        ("records", "file", "records"),
        ("/data/records/", "file", "/data/records"),
        ("C#/what?not", "file", "C#/what?not"),
        (Path("/data/records"), "file", "/data/records"),
        ("file:///data/a%20b", "file", "/data/a b"),
        ("file://localhost/data", "file", "/data"),
        ("az://container/path/to", "az", "container/path/to"),
        ("abfs://box@account.dfs.core.windows.net/path/to", "az", "box/path/to"),
        ("abfss://box@account.dfs.core.windows.net/path", "az", "box/path"),
        ("https://account.blob.core.windows.net/box/path", "az", "box/path"),
        ("https://account.blob.core.windows.net/box/a%20b/", "az", "box/a b"),
        ("memory://a/b", "memory", "a/b"),
        ("s3://bucket/key", "s3", "bucket/key"),
        ("gs://bucket/key", "gs", "bucket/key"),
        ("http://host:8000/a/b", "http", "http://host:8000/a/b"),
        ("HTTPS://host/a/b", "https", "https://host/a/b"),
    ],
)
def test_every_form_becomes_one_location(url: str | Path, protocol: str, root: str) -> None:
    where = parse_location(url)
    assert (where.protocol, where.root) == (protocol, root)


def test_azure_urls_name_the_account() -> None:
    for url in (
        "abfs://box@acme.dfs.core.windows.net/path",
        "https://acme.blob.core.windows.net/box/path",
    ):
        assert parse_location(url).options == {"account_name": "acme"}
        assert parse_location(url).shown == url
    with_sas = parse_location(f"https://acme.blob.core.windows.net/box/path?sv=1&sig={SECRET}")
    assert with_sas.options["sas_token"] == f"sv=1&sig={SECRET}"
    assert with_sas.shown == "https://acme.blob.core.windows.net/box/path"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "path or URL"),
        ("a\0b", "path or URL"),
        (b"bytes", "path or URL"),
        ("~nobody-of-this-name/x", "home"),
        ("file://", "path or URL"),
        ("file://otherhost/data", "file:///path"),
        ("az://container", "az://CONTAINER/PATH"),
        ("az:///path", "az://CONTAINER/PATH"),
        ("abfs://container/path", "CONTAINER@ACCOUNT"),
        ("abfs://box@account.blob.core.windows.net/path", "CONTAINER@ACCOUNT"),
        ("abfs://box@account.dfs.core.windows.net/", "CONTAINER@ACCOUNT"),
        (f"abfs://box:{SECRET}@account.dfs.core.windows.net/p", "CONTAINER@ACCOUNT"),
        ("https://account.blob.core.windows.net/container", "ACCOUNT.blob"),
        ("https://.blob.core.windows.net/container/p", "ACCOUNT.blob"),
        ("http://account.blob.core.windows.net/container/p", "ACCOUNT.blob"),
        (f"https://me:{SECRET}@account.blob.core.windows.net/container/p", "ACCOUNT.blob"),
        (f"https://host/path?sig={SECRET}", r"\? or #"),
        (f"s3://bucket/path?versionId={SECRET}", r"\? or #"),
        (f"http://host/path#{SECRET}", r"\? or #"),
        ("s3://bucket/a/../b", r"\.\."),
        (f"http://[{SECRET}/path", "not a URL"),
        (f"http://u:{SECRET}@ho\u2100st/path", "not a URL"),
    ],
)
def test_an_unclear_location_says_what_to_write(url: Any, says: str) -> None:
    with pytest.raises(LocationError, match=says) as caught:
        parse_location(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None or SECRET not in str(caught.value.__context__)


def test_a_local_path_takes_no_storage_options(tmp_path: Path) -> None:
    with pytest.raises(LocationError, match="account_key") as caught:
        open_storage(tmp_path, {"account_key": SECRET})
    assert SECRET not in str(caught.value)
    assert isinstance(open_storage(tmp_path), LocalStorage)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (f"https://acme.blob.core.windows.net/box/path?sig={SECRET}", {}),
        ("az://box/path", {"account_name": "acme", "account_key": SECRET}),
        ("az://box/path", {"connection_string": f"AccountKey={SECRET}"}),
        (f"http://user:{SECRET}@127.0.0.1:9/path", {}),
        ("memory://box/path", {"token": SECRET}),
    ],
)
def test_no_secret_comes_out(url: str, options: dict[str, str]) -> None:
    storage = open_storage(url, options)
    seen = [repr(parse_location(url)), repr(storage), str(storage), storage.url]
    copy = pickle.loads(pickle.dumps(storage))
    seen += [repr(copy), copy.url]
    for use in (storage, copy):
        actions: list[Callable[[], object]] = [
            partial(use.size, "manifest.json"),
            partial(use.list_files, "../x"),
            partial(use.create, "a"),
        ]
        for action in actions:
            try:
                action()
            except Exception as error:
                seen += traceback.format_exception(error)
                chain: BaseException | None = error
                while chain is not None:
                    seen += [repr(chain), str(vars(chain))]
                    chain = chain.__cause__ or chain.__context__
    with pytest.raises(seqrecord.SeqRecordError) as caught:
        seqrecord.open(url, storage_options=options)
    seen += traceback.format_exception(caught.value)
    assert not [text for text in seen if SECRET in text]


class _Files(BaseHTTPRequestHandler):
    """A static file server that knows ranges, and no listing."""

    root: Path

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        file = self.root / self.path.lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        data = file.read_bytes()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is not None:
            start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
            data = data[start:stop]
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def http_root(tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Files", (_Files,), {"root": tmp_path}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_dataset_opens_over_http(tmp_path: Path, http_root: str) -> None:
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    written = write_small(tmp_path / "dataset")
    with seqrecord.open(f"{http_root}/dataset") as dataset:
        for key, frames in written.items():
            got = dataset.episodes[key][0]
            assert got.keys() == frames[0].keys()
            assert all((got[name] == frames[0][name]).all() for name in ("image_left", "pose"))
    with pytest.raises(seqrecord.NotFoundError, match="no dataset here"):
        seqrecord.open(f"{http_root}/nothing")
