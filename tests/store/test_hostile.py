"""Damaged and malicious files give correct data or a typed error with the location."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

import seqrecord
from seqrecord import reindex
from seqrecord.errors import ChecksumError, FormatError, SeqRecordError, StorageError
from seqrecord.store.format.footer import parse_footer
from seqrecord.store.format.index import Index
from seqrecord.store.format.manifest import Manifest
from tests.kit import tiny
from tests.kit.datasets import written_once
from tests.kit.processes import run_code, run_python
from tests.store.fuzz_files import ALLOWED, KINDS
from tests.store.hostile_cases import CASES

ROOT = Path(__file__).parents[2]
_TABLES = ("episodes", "chunks0", "gaps")


good = written_once(tiny.write_tiny)


@pytest.fixture
def root(good: Path, tmp_path: Path) -> Path:
    return tiny.copy_dataset(good, tmp_path / "dataset")


def test_malformed_files_are_refused_with_little_memory(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from tests.store.hostile_cases import main\n"
        "main(pathlib.Path(sys.argv[1]))"
    )
    done = run_code(code, tmp_path)
    assert done.stdout == f"{len(CASES)} cases\n", done.stderr[-2000:]


Changed: TypeAlias = Iterator[tuple[int, bytes]]


def _flips(data: bytes, thorough: bool) -> Changed:
    """Each byte changed in three ways, or every 29th byte in one of them."""
    for offset in range(0, len(data), 1 if thorough else 29):
        for pattern in (0x01, 0x80, 0xFF)[0 if thorough else offset % 3 :][: 3 if thorough else 1]:
            changed = bytearray(data)
            changed[offset] ^= pattern
            yield offset, bytes(changed)


def _damaged(data: bytes, thorough: bool) -> Changed:
    """With one byte changed, or truncated."""
    yield from _flips(data, thorough)
    for length in range(0, len(data), 1 if thorough else 37):
        yield length, data[:length]


def _check_located(error: SeqRecordError, path: Path) -> None:
    assert error.file == str(path)
    assert error.offset is not None
    assert "\n" not in str(error)


def test_damaged_record_file(root: Path, thorough: bool) -> None:
    """Read with the valid index, and with a rebuilt one."""
    path, manifest = tiny.record_path(root), root / "manifest.json"
    data, expected = path.read_bytes(), tiny.read_all(root)
    assert len(data) < 1500
    with seqrecord.open(root) as dataset, path.open("r+b") as file:
        episode = dataset.episodes[tiny.KEY]
        for offset, damaged in _damaged(data, thorough):
            file.seek(0)
            file.write(damaged)
            file.truncate()
            file.flush()
            try:
                found = {tiny.KEY: [episode[i] for i in range(len(episode))]}
                assert tiny.same_frames(found, expected), offset
            except (ChecksumError, StorageError) as error:
                _check_located(error, path)
    before = manifest.read_bytes()
    for offset, damaged in itertools.islice(_damaged(data, thorough), 0, None, 3):
        path.write_bytes(damaged)
        try:
            reindex(root, created_by="test")
        except FormatError as error:
            _check_located(error, path)
            assert manifest.read_bytes() == before
            continue
        before = manifest.read_bytes()
        try:
            assert tiny.same_frames(tiny.read_all(root), expected), offset
        except ChecksumError as error:
            _check_located(error, path)


@pytest.mark.parametrize("name", ["manifest", *_TABLES])
def test_damaged_manifest_and_index(name: str, root: Path, thorough: bool) -> None:
    path = root / "manifest.json"
    if name != "manifest":
        path = root / tiny.index_entry(json.loads(path.read_bytes()), name)["path"]
    for offset, damaged in _damaged(path.read_bytes(), thorough):
        path.write_bytes(damaged)
        with pytest.raises(FormatError) as caught:
            seqrecord.open(root)
        assert caught.value.file == str(path), offset


# With valid checksums


def _parses(parse: Callable[[], object], offset: int) -> bool:
    """Whether it parses; errors other than `FormatError` fail the test."""
    try:
        parse()
    except FormatError as error:
        if "\n" in str(error):
            pytest.fail(f"flip at {offset}: more than one line: {error}")
        return False
    return True


def test_every_byte_of_a_signed_footer_and_manifest(root: Path, thorough: bool) -> None:
    parts = tiny.split_record(tiny.record_path(root).read_bytes())
    start = 64 + len(parts.pages)
    for offset, text in _flips(json.dumps(parts.head).encode(), thorough):
        parts.text = text
        _parses(lambda: parse_footer(parts.joined()[start:], start), offset)
    parts.text = None
    for rows in ("chunks", "gaps"):
        array = getattr(parts, rows)
        for offset, data in _flips(array.tobytes(), thorough):
            setattr(parts, rows, type(array)(array.shape, array.dtype, data))
            _parses(lambda: parse_footer(parts.joined()[start:], start), offset)
        setattr(parts, rows, array)
    for offset, text in _flips((root / "manifest.json").read_bytes()[:-26], thorough):
        _parses(partial(Manifest.parse, tiny.sign_manifest(text)), offset)


@pytest.mark.parametrize("table", _TABLES)
def test_every_byte_of_a_signed_index(table: str, root: Path, thorough: bool) -> None:
    manifest, _ = tiny.loaded(root)
    sizes = [file.size for file in manifest.record_files]
    tables = {name: (root / file.path).read_bytes() for name, file in manifest.index.items()}
    for offset, changed in _flips(tables[table], thorough):
        flipped = {name: pa.py_buffer(data) for name, data in {**tables, table: changed}.items()}
        parsed = _parses(partial(Index.decode, manifest.schema, flipped, sizes), offset)
        if parsed and not offset % 25:
            tiny.replace_table(root, table, changed)
            with contextlib.suppress(SeqRecordError):
                tiny.read_all(root)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_files_with_several_changed_bytes_are_refused_or_read(kind: str) -> None:
    # In one index the first message is no schema: Arrow's file reader crashes on it.
    cases = 200 if kind == "index" else 100
    words = ["-m", "tests.store.fuzz_files", kind, "--seed", "3", f"--cases={cases}"]
    done = run_python(*words, timeout=230)
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts.keys() <= set(ALLOWED), done.stdout[-3000:]
    assert sum(counts.values()) == cases
    # Changes of names and JSON values that make another valid footer are read, by design.
    assert counts["refused"] > cases // 3, counts


def test_the_format_page_lists_every_refusal() -> None:
    """Each row of the list in docs/format.md names existing tests of the same error."""
    text = (ROOT / "docs" / "format.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| (\w+Error) \| (.*) \|$", text, re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    errors = {case.name: case.error.__name__ for case in CASES}
    files = set(re.findall(r"`(tests/[\w/]+/test_\w+\.py)`", text))
    source = "".join((ROOT / file).read_text("utf-8") for file in files)
    functions = set(re.findall(r"^def (test_\w+)", source, re.M))
    for _, error, names in rows:
        for name in names.split("; "):
            assert name in functions or errors[name] == error, name
    assert {error for _, error, _ in rows} >= set(errors.values())
