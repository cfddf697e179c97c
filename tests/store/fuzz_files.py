"""Change several bytes of a file, recompute every checksum, read.

`python -m tests.store.fuzz_files index --seed 1 --cases 10000` prints the number
of cases by outcome. Other kinds are `footer`, `manifest`, `reference` (pages that refer to another
file) and `original` (the referenced file, read by an existing or a new index). Each
case is opened, read and verified. Its number is printed first, so that it is in the log if a C
library crashes. A case depends only on its kind, the seed and its number: `--first N --cases 1`
repeats case N.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import resource
import shutil
import struct
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from seqrecord import SeqRecordError, convert, open_source, reindex, verify
from seqrecord.store.checksum import crc32c
from tests.kit.tiny import (
    Frames,
    change_manifest,
    copy_dataset,
    index_entry,
    read_all,
    replace_table,
    same_frames,
    sign_manifest,
    split_record,
    write_tiny,
)

KINDS = ("index", "footer", "manifest", "reference", "original")
ALLOWED = ("refused", "as before", "other values")

_GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
_INDEXED = 1_700_000_000  # modification time of originals
_HEADER = 64  # bytes of a record file, before its pages
_MEMORY = 1 << 30  # bytes that a case may allocate
_NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 63, 64, 65, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF),
    *(0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 53, (1 << 63) - 1, 1 << 63),
    *((1 << 64) - 1, (1 << 64) - 64),
)
_VALUES: tuple[Any, ...] = (
    *_NUMBERS,
    *(-1, 1.5, 1e300, True, False, None, "", "x", "../x", "records/x.seqrec", "{}", "[]"),
    *([], {}, [[]], [{}], {"id": "zstd"}, [None, None], [1, 2, 3]),
)


def fuzz(kind: str, seed: int, first: int, stop: int, folder: Path) -> Counter[str]:
    """Run these cases; returns counts by outcome. Prints forbidden outcomes."""
    os.environ["SEQRECORD_HOME"] = str(folder / "home")
    seeds = _datasets(folder)
    if kind in ("reference", "original"):
        seeds = [root for root in seeds if root.parent == folder / "referring"]
    right = [read_all(root) for root in seeds]
    for root in seeds:  # imports all lazily imported modules
        assert verify(root, deep=True, num_threads=1).ok, root
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    change: Callable[[Path, random.Random], object] = {
        "index": _change_index,
        "footer": _change_footer,
        "manifest": _change_manifest,
        "reference": _change_reference,
        "original": _change_original,
    }[kind]
    counts: Counter[str] = Counter()
    for number in range(first, stop):
        print(f"case {number}", flush=True)  # noqa: T201
        rng = random.Random(f"{kind}/{seed}/{number}")
        which = rng.randrange(len(seeds))
        root = folder / "case"
        shutil.rmtree(root, ignore_errors=True)
        copy_dataset(seeds[which], root)
        _put_original(folder)
        if kind == "original" and rng.random() < 0.5:
            root = folder / "videos"  # a new index is built
            os.environ["SEQRECORD_HOME"] = str(folder / "case" / "home")
        try:
            outcome, text = _outcome(partial(change, root, rng), root, right[which])
        except BaseException:
            outcome, text = "another exception", traceback.format_exc()[-3000:]
        os.environ["SEQRECORD_HOME"] = str(folder / "home")
        counts[outcome] += 1
        if outcome not in ALLOWED:
            print(f"{outcome}: {text}", flush=True)  # noqa: T201
    return counts


def _datasets(folder: Path) -> list[Path]:
    """The datasets to be changed."""
    tiny = folder / "tiny"
    if not tiny.exists():
        write_tiny(tiny)
    _put_original(folder)
    referring = [folder / "referring" / name for name in ("plain", "summed")]
    for root in referring:
        if not root.exists():
            source = open_source(folder / "videos")
            convert(source, root, in_place=True, checksums=root.name == "summed", workers=1)
    names = ("variable", "spanning", "fast", "groups")
    golden = [copy_dataset(_GOLDEN / name, folder / name) for name in names]
    return [tiny, *golden, *referring]


def _put_original(folder: Path) -> None:
    """Write the original as it was when it was indexed."""
    path = folder / "videos" / "a.mp4"
    path.parent.mkdir(exist_ok=True)
    shutil.copy(_GOLDEN / "referring" / "original" / "a.mp4", path)
    os.utime(path, (_INDEXED, _INDEXED))


def _outcome(change: Callable[[], object], root: Path, right: Frames) -> tuple[str, str]:
    refused, same = None, False
    try:
        change()
        same = same_frames(read_all(root), right)
    except SeqRecordError as error:
        refused = error
    try:
        report = verify(root, deep=True, num_threads=1)
    except SeqRecordError as error:
        return "refused", str(error)
    if refused is None:
        return ("as before" if same else "other values"), ""
    if report.ok and (root.name == "videos" or (root / "manifest.json").exists()):
        return "missed by verify", str(refused)
    return "refused", str(refused)


def _change_index(root: Path, rng: random.Random) -> None:
    manifest = json.loads((root / "manifest.json").read_bytes())
    chunks = [f"chunks{number}" for number in range(len(manifest["index"]["chunks"]))]
    table = rng.choice(["episodes", rng.choice(chunks), "gaps"])
    data = bytearray((root / index_entry(manifest, table)["path"]).read_bytes())
    # Magic, schema message, metadata of the batch message; its body; end, footer, magic.
    schema = 8 + 8 + struct.unpack_from("<i", data, 12)[0]
    batch = schema + 8 + struct.unpack_from("<i", data, schema + 4)[0]
    if rng.random() < 0.15:
        pieces = [data[:8], data[8:schema], data[schema:batch], data[batch:]]
        data = bytearray().join(rng.choices(pieces, k=rng.randrange(1, 6)))
        if rng.random() < 0.5:
            data[:0] = pieces[0]
    spans = [(8, schema), (schema, batch), (batch, len(data)), (0, len(data))]
    changed = bytes(data) if rng.random() < 0.05 else _changed(data, rng, spans)
    replace_table(root, table, changed)


def _change_footer(root: Path, rng: random.Random) -> None:
    path = rng.choice(sorted((root / "records").glob("*.seqrec")))
    parts = split_record(path.read_bytes())
    if rng.random() < 0.3:
        parts.head = _changed_json(parts.head, rng)
    else:
        text = json.dumps(parts.head, separators=(",", ":")).encode()
        rows = b"".join(array.tobytes() for array in (*parts.groups, parts.gaps))
        where = rng.random()
        if where < 0.3:
            parts.text = _changed(bytearray(text), rng, [(0, len(text))], same_length=True)
        else:
            changed = _changed(bytearray(rows), rng, [(0, len(rows))], same_length=True)
            for number, array in enumerate(parts.groups):
                parts.groups[number] = _like(array, changed[: array.nbytes])
                changed = changed[array.nbytes :]
            parts.gaps = _like(parts.gaps, changed)
        if rng.random() < 0.1:
            parts.length = rng.choice(_NUMBERS)
        if rng.random() < 0.1:
            parts.json_length = rng.choice(_NUMBERS) & 0xFFFFFFFF
    path.write_bytes(parts.joined())
    change_manifest(root, lambda value: _set_size(value, path))
    if rng.random() < 0.7:  # otherwise only `verify` notices
        reindex(root, created_by="test")


def _set_size(manifest: dict[str, Any], path: Path) -> None:
    for file in manifest["record_files"]:
        if file["path"] == f"records/{path.name}":
            file["size"] = path.stat().st_size


def _like(array: Any, data: bytes) -> Any:
    return type(array)(array.shape, array.dtype, data) if array.size else array


def _change_reference(root: Path, rng: random.Random) -> None:
    [path] = (root / "records").glob("*.seqrec")
    parts = split_record(path.read_bytes())
    rows = next(rows for rows in parts.groups if rows["external"].any())
    row = rows[rng.randrange(len(rows))]
    start = int(row["offset"]) - _HEADER
    page = slice(start, start + int(row["pages"]["length"][0]))
    spans = [(0, page.stop - page.start)]
    changed = _changed(parts.pages[page], rng, spans, same_length=True)
    parts.pages[page] = changed
    row["pages"]["crc32c"][0] = crc32c(changed)
    if rng.random() < 0.1:
        row["external"] = rng.choice(_NUMBERS) & 0xFFFFFFFF
    path.write_bytes(parts.joined())
    reindex(root, created_by="test")


def _change_original(root: Path, rng: random.Random) -> None:
    path = root.parent / "videos" / "a.mp4"
    data = bytearray(path.read_bytes())
    moov = data.index(b"moov")
    spans = [(0, len(data)), (moov, len(data)), (0, moov)]
    keeps_length = rng.random() < 0.8
    path.write_bytes(_changed(data, rng, spans, same_length=keeps_length))
    if rng.random() < 0.1:
        os.truncate(path, rng.randrange(len(data)))
    os.utime(path, (_INDEXED, _INDEXED))


def _change_manifest(root: Path, rng: random.Random) -> None:
    path = root / "manifest.json"
    text = path.read_bytes()[:-26]
    if rng.random() < 0.5:
        value = _changed_json(json.loads(text + b"}"), rng)
        text = json.dumps(value, indent=1).encode().removesuffix(b"\n}")
    else:
        text = _changed(bytearray(text), rng, [(0, len(text))])
    path.write_bytes(sign_manifest(text))


def _changed(
    data: bytearray, rng: random.Random, spans: list[tuple[int, int]], *, same_length: bool = False
) -> bytes:
    """Data with several bytes changed, close to each other or not."""
    length = len(data)
    for _ in range(rng.choice([1, 2, 2, 3, 3, 4, 6, 10])):
        start, stop = rng.choice(spans)
        stop = min(stop, len(data))
        if stop - start < 9:
            start, stop = 0, len(data)
        if stop - start < 9:
            return bytes(data)
        at = rng.randrange(start, stop - 8)
        kind = rng.randrange(8)
        if kind <= 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            data[at] = (data[at] + rng.choice([-8, -4, -2, -1, 1, 2, 4, 8])) % 256
        elif kind <= 5:
            width = rng.choice([1, 2, 4, 8])
            number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
            at -= at % width
            data[at : at + width] = number.to_bytes(width, "little")
        elif kind == 6:
            source, count = rng.randrange(start, stop - 8), rng.choice([1, 2, 4, 8])
            data[at : at + count] = data[source : source + count]
        elif not same_length and rng.random() < 0.5:
            if rng.random() < 0.5:
                data[at:at] = rng.randbytes(rng.choice([1, 4, 8, 64]))
            else:
                del data[at : at + rng.choice([1, 4, 8, 64])]
    return bytes(data[:length] if same_length else data)


def _changed_json(value: Any, rng: random.Random) -> Any:
    """A JSON value with several nested values changed, removed, added or exchanged."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 2, 2, 3, 5])):
        places = list(_places(value))
        parent, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind <= 2:
            parent[key] = copy.deepcopy(rng.choice(_VALUES))
        elif kind == 3:
            other, theirs = rng.choice(places)
            parent[key] = copy.deepcopy(other[theirs])
        elif kind == 4 and isinstance(parent[key], int):
            parent[key] += rng.choice([-64, -8, -1, 1, 8, 64])
        elif isinstance(parent, list) and rng.random() < 0.5:
            parent.append(copy.deepcopy(parent[key]))
        else:
            del parent[key]
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Parent and key or position of every nested value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seqrecord-fuzz-") as folder:
        stop = args.first + args.cases
        print(json.dumps(fuzz(args.kind, args.seed, args.first, stop, Path(folder))))  # noqa: T201


if __name__ == "__main__":
    main()
