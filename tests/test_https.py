"""Reading from nginx over HTTPS: its own certificate authority, proxies, connections that break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord.errors import DeadlineError, StorageError, TransientError
from seqrecord.storage import Storage, open_storage
from tests.connect_proxy import ConnectProxy
from tests.obstore_runtime import obstore_is
from tests.services import Authority, Nginx
from tests.storage_contract import Add, ReadContract, get

DATA = np.random.default_rng(5).bytes(3 << 20)
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def url(nginx: Nginx, tmp_path: Path) -> str:
    """A folder of it that holds the file `records/0`."""
    nginx.put(f"{tmp_path.name}/records/0", DATA)
    return f"{nginx.endpoint}/{tmp_path.name}"


@pytest.fixture(params=["obstore", "without"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Everything through obstore, or, as in a fork, nothing; no proxy but the test's own."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with obstore_is(used=request.param == "obstore", lost=request.param != "obstore"):
        yield str(request.param)


@pytest.fixture
def known(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The authority is known to all clients of this process."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    return authority.certificate


def opened(url: str, client: str, known: Path, **options: Any) -> Storage:
    """obstore is told by an option; without it the environment tells."""
    if client == "obstore":
        options["root_certificate"] = str(known)
    return open_storage(url, options)


class TestNginx(ReadContract):
    @pytest.fixture
    def add(self, nginx: Nginx, tmp_path: Path) -> Add:
        return lambda path, data: nginx.put(f"{tmp_path.name}/set/{path}", data)

    @pytest.fixture
    def storage(self, nginx: Nginx, known: Path, client: str, tmp_path: Path) -> Iterator[Storage]:
        storage = opened(f"{nginx.endpoint}/{tmp_path.name}/set", client, known)
        yield storage
        storage.close()


def test_an_authority_that_nobody_knows(
    url: str, client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = Authority(tmp_path / "strange", "that signed nothing")
    option: dict[str, Any] = {"root_certificate": str(strange.certificate)}
    if client != "obstore":
        option = {}
        monkeypatch.setenv("SSL_CERT_FILE", str(strange.certificate))
    for options in ({}, option):
        storage = open_storage(url, options)
        for item in ((0, 50), (0, None)):  # the second asks for the size first
            with pytest.raises(StorageError, match="certificate is not trusted") as caught:
                get(storage, "records/0", *item)
            assert not isinstance(caught.value, TransientError)
            assert "SSL_CERT_FILE" in str(caught.value)
        storage.close()


def test_a_certificate_of_another_host(
    new_nginx: Callable[..., Nginx], known: Path, client: str
) -> None:
    other = new_nginx("files.example.org")
    other.put("a", DATA[:1000])
    storage = opened(other.endpoint, client, known)
    with pytest.raises(StorageError, match="certificate") as caught:
        get(storage, "a", 0, 50)
    assert not isinstance(caught.value, TransientError)
    storage.close()


def test_a_connection_that_breaks_is_made_again(
    url: str, known: Path, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the handshake, in the headers, in the body."""
    cuts: list[int | None] = [1, 700, 2500, 500_000]
    with ConnectProxy(lambda number: cuts[number] if number < len(cuts) else None) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint)
        storage = opened(url, client, known, deadline=60)
        assert get(storage, "records/0", 0, len(DATA)) == DATA
        assert len(proxy.asked) > len(cuts)
        assert storage.counters()["retries"] >= len(cuts)
        storage.close()


def test_proxies_of_the_environment_and_of_an_option(
    nginx: Nginx, url: str, known: Path, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(**options: Any) -> None:
        with closing(opened(url, client, known, **options)) as storage:
            assert get(storage, "records/0", 0, 50) == DATA[:50]
            assert storage.size("records/0") == len(DATA)

    with ConnectProxy() as proxy:
        if client == "obstore":
            read(proxy_url=proxy.endpoint)
            assert set(proxy.asked) == {nginx.host}
            proxy.asked.clear()
        monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint)
        read()
        assert set(proxy.asked) == {nginx.host}
        proxy.asked.clear()
        monkeypatch.setenv("NO_PROXY", "example.org,127.0.0.1")
        read()
        assert proxy.asked == []
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    with pytest.raises(DeadlineError):  # one that is not there is not gone around
        read(deadline=0.3)
    monkeypatch.delenv("HTTPS_PROXY")
    with closing(open_storage(url)) as storage:  # the authority of the environment
        assert get(storage, "records/0", 0, 50) == DATA[:50]
