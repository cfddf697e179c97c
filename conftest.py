"""Options of test runs, and fixtures shared by many test files."""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import hypothesis
import pytest

from tests.kit.command_line import separate_outputs
from tests.kit.processes import forget_threads, is_own
from tests.kit.services import (
    Authority,
    Azurite,
    Moto,
    Mount,
    Nginx,
    need_azurite,
    need_moto,
    need_mount,
    need_nginx,
)
from tests.kit.services.gcs_stub import GcsStub
from tests.kit.services.places import PLACES, Place, make_place

if TYPE_CHECKING:
    from tests.store.killed_writer import Writers

# Number of examples of each property: few in `make test`, many in `make test-slow`, the least in
# `make quick` and `make test-lowest`.
hypothesis.settings.register_profile("few", max_examples=15, deadline=None, derandomize=True)
hypothesis.settings.register_profile("least", max_examples=5, deadline=None, derandomize=True)
hypothesis.settings.register_profile("many", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("few")

separate_outputs()  # before a test imports it

# Workers forked from a server with these modules start at once; spawned workers import torch.
multiprocessing.set_forkserver_preload(["torch.utils.data", "torchdata.stateful_dataloader"])

_SERVICES = {"azurite", "moto", "mount", "new_nginx", "nginx"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-case", action="store_true", help="run each test with one case only")
    parser.addoption(
        "--no-processes", action="store_true", help="skip tests at the start of a process"
    )
    parser.addoption(
        "--share",
        type=float,
        default=1,
        help="run this share of the tests, and all of services and all fast ones of benchmarks",
    )
    parser.addoption("--share-seed", default="", help="draw that share by this text")


def pytest_configure(config: pytest.Config) -> None:
    # Killed processes leave files behind. They are removed at the end of the run, after the folder
    # that multiprocessing removes at priority -100.
    if not hasattr(config, "workerinput"):
        made = tempfile.mkdtemp(prefix="seqrecord-tests-", dir=_memory_folder(config))
        os.environ["TMPDIR"] = tempfile.tempdir = made
        os.environ["SEQRECORD_HOME"] = f"{tempfile.tempdir}/home"
        Finalize(None, shutil.rmtree, (os.environ["TMPDIR"], True), exitpriority=-200)
    # Processes in a shell's background inherit a disabled Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Otherwise tests that read the log find messages from threads of earlier tests.
    logging.getLogger("seqrecord").addFilter(is_own)


def _memory_folder(config: pytest.Config) -> str | None:
    """A folder in memory for `make quick`, which writes 1 GB, if 8 GB of it are free.

    Making files and folders on a disk took 5 % of its CPU time in a profile. Other runs test the
    memory that processes share: pages of files in memory count as such.
    """
    folder = Path("/dev/shm")
    is_quick = config.getoption("--no-processes") and folder.is_dir()
    return str(folder) if is_quick and shutil.disk_usage(folder).free > 8 << 30 else None


def pytest_report_header(config: pytest.Config) -> str | None:
    share = config.getoption("--share")
    seed = config.getoption("--share-seed")
    return None if share == 1 else f"drawn tests: --share {share} --share-seed {seed!r}"


def _skip_processes(event: str, _arguments: object) -> None:
    if event in {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}:
        _refused.append(event)
        pytest.skip("starts a process")


_refused: list[str] = []  # with --no-processes: the running test's attempts to start a process


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    _refused.clear()
    try:
        yield
    except Exception:
        if _refused:  # a client caught the skip and raised its own error
            pytest.skip("starts a process")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Import a share of the test modules; pytest-xdist's other workers compile the other shares.

    Garbage collection is off meanwhile, because modules and tests are kept until the end.
    """
    gc.disable()
    try:
        _import_share(session)
        return (yield)
    finally:
        gc.enable()


def _import_share(session: pytest.Session) -> None:
    found = getattr(session.config, "workerinput", None)
    if found is not None and session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        number, count = int(found["workerid"].removeprefix("gw")), found["workercount"]
        root = session.config.rootpath
        files = sorted((root / "tests").rglob("test_*.py"))
        for file in files[number::count]:
            with suppress(Exception, pytest.skip.Exception):  # collection reports it
                importlib.import_module(".".join(file.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    forget_threads()


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--no-processes"):
        sys.addaudithook(_skip_processes)
        start = "multiprocessing.process.BaseProcess.start"  # a spawn has no audit event
        pytest.MonkeyPatch().setattr(start, lambda _process: pytest.skip("starts a process"))
    _freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    # Modules and tests live as long as the process. Frozen, they are skipped by all later
    # collections, which would also copy their pages in forked processes.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    tests = config.rootpath / "tests"
    for item in items:
        # Processes of one run must collect the same names, and an address differs.
        assert " at 0x" not in item.nodeid, f"give the parameters of {item.nodeid} ids"
        used: list[str] = getattr(item, "fixturenames", [])
        if _SERVICES & set(used):
            item.add_marker("service")
        if not item.path.is_relative_to(tests):
            item.add_marker("development")
    yield  # -m selects
    chosen = {item.nodeid for item in items}
    left_out = {item.nodeid for item in items if _whole(item) in chosen}
    if config.getoption("--one-case"):
        first: dict[str, str] = {}  # case by test
        for item in items:
            first.setdefault(item.nodeid.partition("[")[0], item.nodeid)
        left_out |= chosen.difference(first.values())
    share, seed = config.getoption("--share"), config.getoption("--share-seed")
    if share < 1:
        left_out |= {
            item.nodeid
            for item in items
            if (item.get_closest_marker("slow") or not item.get_closest_marker("development"))
            and not item.get_closest_marker("service")
            and random.Random(f"{seed} {item.nodeid}").random() >= share
        }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]


def _whole(item: pytest.Item) -> str | None:
    """Id of the thorough test whose cases include those of this test; see `thorough`."""
    call = getattr(item, "callspec", None)
    if call is None or call.params.get("thorough") is not False:
        return None
    name, _, ids = item.nodeid.partition("[")
    parts = ["all" if part == "some" else part for part in ids[:-1].split("-")]
    return f"{name}[{'-'.join(parts)}]"


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of `tests.kit.clip_data`, written once. Tests must not change it."""
    from tests.kit.clip_data import write_numbered  # imports torch, which takes seconds

    return write_numbered(tmp_path_factory.mktemp("numbered") / "records")


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with large images: their raw pages are read directly into the frame's memory."""
    from tests.kit.clip_data import LARGE, write_numbered

    folder = tmp_path_factory.mktemp("large")
    return write_numbered(folder / "records", codecs="raw", shape=LARGE)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of `tests.kit.datasets.write_small`, written once. Tests must not change it."""
    from tests.kit.datasets import write_small

    folder = tmp_path_factory.mktemp("small") / "records"
    write_small(folder)
    return folder


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
def thorough(request: pytest.FixtureRequest) -> bool:
    """`True` in a slow test with all cases, `False` in a fast test with a subset.

    A run that selects both skips the fast one.
    """
    return bool(request.param)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of this test's folder for indexes of originals. The folder does not exist yet."""
    monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delays between attempts in other packages' clients."""
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))


@pytest.fixture(scope="session", autouse=True)
def no_sync() -> Iterator[None]:
    """Replace fsync, which takes most of the time of writes and matters only if power fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # raises the same error for a closed descriptor
        yield


@pytest.fixture(scope="session", autouse=True)
def raw_errors() -> Iterator[tuple[type[Exception], ...]]:
    """Let unexpected errors of readers of originals pass: each is a missing check.

    Returns their types, which users get as `SourceError`.
    """
    boundary = importlib.import_module("seqrecord.in_place.boundary")
    types: tuple[type[Exception], ...] = boundary.RAW_ERRORS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boundary, "RAW_ERRORS", ())
        yield types


@pytest.fixture
def users_boundary(
    raw_errors: tuple[type[Exception], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Turn unexpected errors of readers into `SourceError`, as for users."""
    monkeypatch.setattr("seqrecord.in_place.boundary.RAW_ERRORS", raw_errors)


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
    need_moto()
    service = Moto(tmp_path_factory.mktemp("moto"))
    yield service
    service.stop()


@pytest.fixture
def gcs() -> Iterator[GcsStub]:
    """An empty stub of Google Cloud Storage."""
    with GcsStub() as stub:
        yield stub


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The certificate authority of nginx. No client trusts it by default."""
    pytest.importorskip("cryptography", reason="pip install cryptography")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def nginx(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """One nginx for all tests; take a folder of your own in its `root`."""
    need_nginx()
    service = Nginx(tmp_path_factory.mktemp("nginx"), *authority.issue())
    yield service
    service.stop()


@pytest.fixture
def new_nginx(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Nginx]]:
    """`new_nginx(host)` starts an nginx for this test, with a certificate for that host."""
    need_nginx()
    with ExitStack() as stack:

        def make(host: str = "127.0.0.1") -> Nginx:
            made = Nginx(tmp_path_factory.mktemp("nginx"), *authority.issue(host))
            stack.callback(made.stop)
            return made

        yield make


@pytest.fixture(scope="session")
def writers() -> Iterator[Writers]:
    """A process that forks writers, for tests that kill them."""
    from tests.store.killed_writer import Writers  # imports the package

    writers = Writers()
    yield writers
    writers.close()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty folder of each kind of store; choose kinds with `indirect=True`."""
    with make_place(request.param, request.getfixturevalue, tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def other_process() -> Iterator[Callable[..., Any]]:
    """`other_process(function, *args)` returns the result of a function in another process."""
    with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(100)


@pytest.fixture(scope="session")
def torchcodec() -> Any:
    """The decoder class of torchcodec, whose import takes a second. Skips without torchcodec."""
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError):
        pytest.skip("torchcodec cannot be imported")
    return VideoDecoder


@pytest.fixture
def container(azurite: Azurite) -> str:
    """An empty container."""
    return azurite.new_container()


@pytest.fixture
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Mount]]:
    """`mount(azurite, container, writable=False, …)` returns a `Mount`, unmounted afterwards."""
    need_mount()
    with ExitStack() as stack:

        def make(azurite: Azurite, container: str, **options: Any) -> Mount:
            made = Mount(azurite, container, tmp_path_factory.mktemp("mount"), **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def memory_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of an empty folder in fsspec's memory filesystem."""
    url = f"memory://{re.sub(r'[^a-z0-9_]', '_', request.node.name)}"
    yield url
    memory = fsspec.filesystem("memory")
    if memory.exists(url):
        memory.rm(url, recursive=True)
