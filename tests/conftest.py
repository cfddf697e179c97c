"""Fixtures of the services that some tests need; see `tests/services`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.services import Azurite, Moto, Mount, need_azurite, need_mount


def pytest_configure() -> None:
    # A shell starts what it runs in the background deaf to Ctrl-C, and that is inherited.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        used: list[str] = getattr(item, "fixturenames", [])
        if {"azurite", "mortal_azurite", "mount"} & set(used):
            item.add_marker("service")


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """One Azurite for all tests; take a container of your own with `azurite.new_container()`."""
    need_azurite()
    service = Azurite(tmp_path_factory.mktemp("azurite"))
    yield service
    service.stop()


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """One moto for all tests; take a bucket of your own with `moto.new_bucket()`."""
    for package in ("moto", "flask", "boto3"):
        pytest.importorskip(package, reason="pip install 'moto[server]'")
    service = Moto(tmp_path_factory.mktemp("moto"))
    yield service
    service.stop()


@pytest.fixture
def mortal_azurite(tmp_path: Path) -> Iterator[Azurite]:
    """An Azurite of the test's own, to kill and to restart."""
    need_azurite()
    service = Azurite(tmp_path / "azurite")
    yield service
    service.stop()


@pytest.fixture
def container(azurite: Azurite) -> str:
    """An empty container."""
    return azurite.new_container()


@pytest.fixture
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Mount]]:
    """`mount(azurite, container, writable=False, …)`: see `Mount`; unmounted after the test."""
    need_mount()
    with ExitStack() as stack:

        def make(azurite: Azurite, container: str, **options: Any) -> Mount:
            made = Mount(azurite, container, tmp_path_factory.mktemp("mount"), **options)
            stack.callback(made.close)
            return made

        yield make
