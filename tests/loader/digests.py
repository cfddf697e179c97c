"""`python -m tests.loader.digests`: what loaders of random arguments return, in two commits.

In each of two checkouts, or before and after a change::

    python -m tests.loader.digests --count 2000 --to before.jsonl
    python -m tests.loader.digests --count 2000 --compare before.jsonl

A seed draws configurations: a pipe, stream, node, map-style dataset, DataLoader or mix, with the
arguments of `clip_model.cases` or `table_model.table_cases`, ranks, two epochs, and a resume in the
middle. A line of the file has digests of all batches (names, dtypes, shapes and bytes of all
values, in order), of states and of counts, or the type of an error. Configurations that differ are
printed, and the exit status is 1. About ten minutes of a core for 2,000.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordMix
from seqrecord.errors import SeqRecordError
from tests.loader import unordered
from tests.loader.clip_model import GROUPS, write_all
from tests.loader.configurations import OF_STREAMS, PROCESSES, drawn, maker

__all__ = ["main"]

COUNTS = [
    *("batches", "clips", "clips_dropped", "clips_incomplete", "clips_outside"),
    *("duplicate_clips", "features_resident", "frames_decoded"),
]
"""The last one is not of a mix, whose sources may have read ahead when it ends."""


class Digest:
    """A hash of values of any kind: names, dtypes, shapes and bytes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, value: Any) -> None:
        update = self._hash.update
        if isinstance(value, torch.Tensor) and value.is_nested:
            update(b"nested")
            value = list(value.unbind())
        if isinstance(value, torch.Tensor):
            update(b"tensor")
            value = value.numpy()
        if isinstance(value, np.ndarray):
            update(f"{value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            update(f"dict {len(value)}".encode())
            for name, item in value.items():
                self.add(name)
                self.add(item)
        elif isinstance(value, (list, tuple)):
            update(f"list {len(value)}".encode())
            for item in value:
                self.add(item)
        else:
            update(f"{type(value).__name__} {value!r}".encode())

    @property
    def text(self) -> str:
        return self._hash.hexdigest()[:16]


class Outcome:
    """Digests of a configuration, by subject."""

    def __init__(self) -> None:
        self._digests = {name: Digest() for name in ("batches", "states", "counts")}
        self.error = ""

    def take(self, loader: Any, count: int | None = None) -> int:
        """Add batches of an iteration, all or some; returns their number."""
        number = 0
        for batch in islice(loader, count):
            self._digests["batches"].add(batch)
            number += 1
        return number

    def add_state(self, state: Any) -> None:
        self._digests["states"].add(json.dumps(state, sort_keys=True, default=repr))

    def add_counts(self, loader: Any) -> None:
        """Add the counts of an epoch, and the length of the next one."""
        stats, names = loader.stats(), COUNTS[: -1 if isinstance(loader, SeqRecordMix) else None]
        self._digests["counts"].add({name: stats.get(name) for name in names})
        self._digests["counts"].add(len(loader))

    @property
    def line(self) -> dict[str, str]:
        found = {name: digest.text for name, digest in self._digests.items()}
        return {**found, "error": self.error}


def run(records: Any, configuration: Mapping[str, Any]) -> Outcome:
    """Iterate over the loaders of a configuration."""
    outcome, kind = Outcome(), configuration["kind"]
    try:
        if kind == "map style":
            read_by_number(outcome, records, configuration)
        elif kind in PROCESSES:
            read_with_processes(outcome, records, configuration)
        else:
            stream(outcome, maker(records, configuration), configuration)
    except SeqRecordError as error:  # messages may change
        outcome.error = type(error).__name__
    return outcome


def stream(outcome: Outcome, make: Callable[..., Any], configuration: Mapping[str, Any]) -> None:
    """Two epochs on all ranks, and a resume in the middle of one on other ranks."""
    ranks, epoch, taken = (configuration[name] for name in ("ranks", "epoch", "taken"))
    is_loader = configuration["kind"] == "loader"
    state = None
    for rank in range(ranks):
        loader = make((rank, ranks))
        loader.set_epoch(epoch)
        for _ in range(2):
            outcome.take(DataLoader(loader, None, collate_fn=dict) if is_loader else loader)
            outcome.add_state(loader.state_dict())
            outcome.add_counts(loader)
        loader.set_epoch(epoch)
        outcome.take(loader, taken)
        state = loader.state_dict()
        outcome.add_state(state)
    size, later = configuration["later size"], configuration["later ranks"]
    more = {} if size is None or configuration["kind"] == "mix" else {"batch_size": size}
    for rank in range(later):
        loader = make((rank, later), **more)
        loader.load_state_dict(json.loads(json.dumps(state)))
        outcome.take(loader)
        outcome.add_state(loader.state_dict())


def read_by_number(outcome: Outcome, records: Any, configuration: Mapping[str, Any]) -> None:
    given = configuration["options"].items()
    options = {name: value for name, value in given if name not in OF_STREAMS}
    if "clip_transform" in options:
        torch.manual_seed(configuration["epoch"])
    dataset = seqrecord.SeqRecordMapDataset(records, **options)
    dataset.set_epoch(configuration["epoch"])
    outcome.take(dataset[number] for number in range(0, len(dataset), 3))
    outcome.take(DataLoader(dataset, batch_size=4, collate_fn=seqrecord.collate))


def read_with_processes(outcome: Outcome, records: Any, configuration: Mapping[str, Any]) -> None:
    options = {n: v for n, v in configuration["options"].items() if n != "memory_limit"}
    ranks = configuration["ranks"]
    dataset = SeqRecordIterableDataset(records, **options, rank=(0, ranks))
    dataset.set_epoch(configuration["epoch"])
    is_stateful = configuration["kind"] == "stateful workers"
    loader = StatefulDataLoader if is_stateful else DataLoader
    outcome.take(loader(dataset, batch_size=None, num_workers=2, collate_fn=dict))
    outcome.add_state(dataset.state_dict(batches=configuration["taken"]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.loader.digests", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=200, help="number of configurations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, help="file for the digests")
    parser.add_argument("--compare", type=Path, help="file of another run")
    parser.add_argument("--unordered", action="store_true", help="compare clips in any order")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of configurations: unordered")
    parser.add_argument("--show", action="store_true", help="print clips: unordered")
    options = parser.parse_args(arguments)
    with quiet():
        if options.unordered:
            with tempfile.TemporaryDirectory() as folder:
                return unordered.main(options, Path(folder))
        return digest(options)


@contextmanager
def quiet() -> Iterator[None]:
    """Only errors of the package are logged, and there are no warnings, in this block."""
    logger = logging.getLogger("seqrecord")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def digest(options: argparse.Namespace) -> int:
    """Digests of batches in their order."""
    begin, lines = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        records = seqrecord.open(write_all(Path(folder) / "records", GROUPS))
        for number, configuration in enumerate(drawn(options.seed, range(options.count))):
            line = {"number": number, "kind": configuration["kind"]}
            outcome = run(records, configuration)
            lines.append({**line, **outcome.line, "configuration": repr(configuration)})
            if options.to is not None:
                with options.to.open("a" if number else "w", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    differing = [] if options.compare is None else compared(options.compare, lines)
    for text in differing:
        sys.stdout.write(f"{text}\n")
    errors = sum(bool(line["error"]) for line in lines)
    seconds = time.perf_counter() - begin
    sys.stdout.write(
        f"{len(lines)} configurations in {seconds:.0f} s, {errors} refused, "
        f"{len(differing)} differ\n"
    )
    return bool(differing)


def compared(path: Path, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Configurations whose digests differ from a file's."""
    others = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    differing = [] if len(others) >= len(lines) else [f"{path}: {len(others)} configurations"]
    for line, other in zip(lines, others, strict=False):
        subjects = [name for name in line if line[name] != other.get(name)]
        if subjects:
            differing.append(f"{line['number']}: {', '.join(subjects)}: {line['configuration']}")
    return differing


if __name__ == "__main__":
    sys.exit(main())
