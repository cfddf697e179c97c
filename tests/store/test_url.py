from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.edit import clean
from seqrecord.errors import LocationError
from seqrecord.store.storage.url import parse_location
from tests.kit.command_line import run
from tests.kit.datasets import write_dataset, write_small

SECRET = "MARKED-S3CRET"


LOCATIONS: list[tuple[str | Path, str, str]] = [
    ("/data/records/", "file", "/data/records"),
    ("C#/what?not", "file", "C#/what?not"),
    (Path("/data/records"), "file", "/data/records"),
    ("file:///data/a%20b", "file", "/data/a b"),
    ("file://localhost/data", "file", "/data"),
    ("abfs://box@account.dfs.core.windows.net/path/to", "az", "box/path/to"),
    ("abfss://box@account.dfs.core.windows.net/path", "az", "box/path"),
    ("https://account.blob.core.windows.net/box/a%20b/", "az", "box/a b"),
    ("https://account.dfs.core.windows.net/box/path", "az", "box/path"),
    ("https://ACCOUNT.blob.core.windows.net/box", "az", "box"),
    ("https://account.blob.core.chinacloudapi.cn/box/path", "az", "box/path"),
    ("https://account.z12.blob.storage.azure.net/box/path", "az", "box/path"),
    ("abfs://box@account.dfs.core.windows.net/", "az", "box"),
    ("az://box@account.dfs.core.windows.net/path", "az", "box/path"),
    ("az://container", "az", "container"),
    ("memory://a/b", "memory", "a/b"),
    ("s3://bucket/key", "s3", "bucket/key"),
    ("http://host:8000/a/b", "http", "http://host:8000/a/b"),
    ("HTTPS://host/a/b", "https", "https://host/a/b"),
    ("http://me:a%2Fb@host/a", "http", "http://me:a%2Fb@host/a"),
    ("http://[::1]/a@b", "http", "http://[::1]/a@b"),
    ("s3://bucket/a@b:c", "s3", "bucket/a@b:c"),
]


def test_every_form_becomes_one_location() -> None:
    for url, protocol, root in LOCATIONS:
        where = parse_location(url)
        assert (where.protocol, where.root) == (protocol, root)


def test_azure_urls_name_the_account_and_its_service() -> None:
    blob, gov = "blob.core.windows.net", "core.usgovcloudapi.net"
    for url, service in (
        ("abfs://box@acme.dfs.core.windows.net/path", blob),
        ("az://box@acme.dfs.core.windows.net/path", blob),
        (f"https://acme.{blob}/box/path", blob),
        (f"https://acme.dfs.{gov}/box/path", f"blob.{gov}"),
        ("https://acme.z1.blob.storage.azure.net/box/path", "z1.blob.storage.azure.net"),
    ):
        where = parse_location(url)
        assert where.options == {"account_name": "acme", "endpoint": f"https://acme.{service}"}
        assert where.shown == url
        assert url.startswith("az:") or parse_location(url, backend="blobfile") == where
    where = parse_location("az://acme/box/path", backend="blobfile")
    assert (where.protocol, where.root, where.options) == (
        *("az", "box/path"),
        {"account_name": "acme"},
    )
    for url in ("az://account", "az:///container/path"):
        with pytest.raises(LocationError) as info:
            parse_location(url, backend="blobfile")
        assert info.value.expected == "az://ACCOUNT/CONTAINER/PATH"


UNCLEAR: list[tuple[Any, str]] = [
    ("", "path or URL"),
    ("a\0b", "path or URL"),
    (b"bytes", "path or URL"),
    ("~nobody-of-this-name/x", "home"),
    ("file://", "path or URL"),
    ("file://otherhost/data", "file:///path"),
    ("az:///path", "az://CONTAINER/PATH"),
    (f"az://container/path?sig={SECRET}", r"\? or #"),
    ("abfs://container/path", "CONTAINER@ACCOUNT"),
    ("abfs://box@account.blob.core.windows.net/path", "CONTAINER@ACCOUNT"),
    ("abfs://box@account.dfs.example.com/path", "CONTAINER@ACCOUNT"),
    (f"abfs://box@account.dfs.core.windows.net/p?sig={SECRET}", "CONTAINER@ACCOUNT"),
    (f"abfs://box:{SECRET}@account.dfs.core.windows.net/p", "CONTAINER@ACCOUNT"),
    ("https://account.blob.core.windows.net/", "ACCOUNT.blob"),
    ("https://account.file.core.windows.net/share/path", "ACCOUNT.blob"),
    ("https://no_account.blob.core.windows.net/container/p", "ACCOUNT.blob"),
    ("https://.blob.core.windows.net/container/p", "ACCOUNT.blob"),
    ("http://account.blob.core.windows.net/container/p", "ACCOUNT.blob"),
    (f"https://me:{SECRET}@account.blob.core.windows.net/container/p", "ACCOUNT.blob"),
    (f"https://host/path?sig={SECRET}", r"\? or #"),
    (f"s3://bucket/path?versionId={SECRET}", r"\? or #"),
    (f"http://host/path#{SECRET}", r"\? or #"),
    ("s3://bucket/a/../b", r"\.\."),
    ("https://account.blob.core.windows.net/box/a/%2E%2e/b", r"\.\."),
    (f"http://[{SECRET}/path", "not a URL"),
    (f"http://u:{SECRET}@ho\u2100st/path", "not a URL"),
    (f"s3://KEY:{SECRET}@bucket/path", "s3://BUCKET/PATH"),
    (f"gs://{SECRET}@bucket", "gs://BUCKET/PATH"),
    (f"ftp://me:{SECRET}/x@host/path", "%2F"),
    (f"http://host:80/{SECRET}@x", "%40"),
    (f"github://org:repo@main/{SECRET}@x", "%40"),
    (f"simplecache::http://me:{SECRET}@host", "not a URL"),
    ([f"http://me:{SECRET}@host"], r"\['http:/…"),
    (f"http://me:{SECRET}@host".encode(), "b'http:/…"),
]


def test_errors_of_unclear_locations_show_a_valid_form() -> None:
    for url, message in UNCLEAR:
        with pytest.raises(LocationError, match=message) as caught:
            parse_location(url)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert SECRET not in str(caught.value.__context__)


# A URL in a path object loses a slash.

SIGNED = f"https://acme.blob.core.windows.net/box/set?sv=1&sig={SECRET}"


def _write(path: Any) -> None:
    write_dataset(path, {"a": [{"x": np.zeros(2)}]})


Use = Callable[[Any], Any]
_TAKES_A_LOCATION: list[Use] = [
    *(open_source, seqrecord.open, _write, seqrecord.verify, seqrecord.reindex, seqrecord.view),
    lambda path: seqrecord.convert(open_source("source"), path),
    lambda path: clean(path, older_than=0),
    lambda path: seqrecord.SeqRecordPipe(path, clip_len=2),
    lambda path: seqrecord.SeqRecordMapDataset(path, clip_len=2),
    lambda path: seqrecord.bench(path, clip_len=2),
]
_TAKES_A_PATH: list[Use] = [
    lambda path: seqrecord.open(SIGNED, cache_dir=path, cache_limit="1GiB"),
    lambda path: seqrecord.export.to_files("dataset", "alpha/Easy/P000", path),
    lambda path: seqrecord.EngineOptions(trace=path),
]
_COMMANDS = [
    *(f"{name} {{}}" for name in ("info", "verify", "reindex", "clean", "view", "bench")),
    *("export {} walk out", "export dataset alpha/Easy/P000 {}"),
    *("write --src {}", "write --src source --dst {}"),
    *("view dataset -o {}", "bench dataset --trace {}"),
    "bench memory://box --cache-limit 1GiB --cache-dir {}",
]


def test_a_url_in_a_path_object_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a URL in place of a local path. Errors do not show it, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source" / "walk").mkdir(parents=True)
    np.save(tmp_path / "source" / "walk" / "pose.npy", np.zeros((3, 7)))
    write_small(tmp_path / "dataset")
    as_text, half = 'the URL as text, "(https|s3)://…"', Path(SIGNED)
    others = [half.absolute(), Path(f"s3://me:{SECRET}@bucket"), str(half)]
    others.append(PurePosixPath(f"HTTPS://host/{SECRET}"))
    cases: list[tuple[Use, Any, str]] = [
        *((use, half, as_text) for use in (*_TAKES_A_LOCATION, *_TAKES_A_PATH)),
        *((seqrecord.open, path, as_text) for path in others),
        *((use, SIGNED, "a URL; expected: a path of this machine") for use in _TAKES_A_PATH),
    ]
    for use, path, message in cases:
        with pytest.raises(LocationError, match=message) as caught:
            use(path)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    for command in _COMMANDS:
        output = run(*(word.format(half) for word in command.split()), code=1).output
        assert "a slash missing" in output
        assert SECRET not in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "source"]


def test_a_folder_that_looks_like_a_url_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_small(str(tmp_path / "run:" / "records"))
    for location in ("./run:/records", str(tmp_path / "run:" / "records")):
        assert seqrecord.open(location).num_frames
    for path in (Path("run") / "a:b", Path("C:/x"), Path("1:/x")):
        assert parse_location(path).root == str(path)


def test_a_lone_surrogate_is_refused() -> None:
    for location in ("/tmp/\ud800", "s3://b/\udc80", "http://u:S3CRET@h/\ud800"):
        with pytest.raises(LocationError, match=r"not a path or URL; expected: Unicode") as caught:
            parse_location(location)
        assert "S3CRET" not in str(caught.value)
    assert parse_location("/tmp/\udc80").root == "/tmp/\udc80"  # invalid UTF-8
