"""What loaders of random arguments deliver in each epoch, in any order.

`python -m tests.loader.digests --unordered` compares it with a file; `GOLDEN` was recorded with the
loader before issue 96 (commit 57fe0c82). The configurations are those of the ordered digests, with
the same dataset and a camera.

**What is compared.** A clip is its dataset, episode, start and row of the table, and the values of
all features and columns. A *plain pass* delivers the clips of an epoch: one rank, without shuffling
and without a limit of memory, and `last_batch="keep"`. The file has these digests of each
configuration:

- `rows`: which clips plain passes of two epochs have, sorted; without `repeat`, so each row once;
- `values`: the same with all values;
- `copies`: the same with `repeat`, each as often as it comes, with random numbers of its own;
- `columns`: names, dtypes and shapes of the columns of batches;
- `sizes`: numbers of clips in batches, sorted, of all ranks together;
- `counts`: clips delivered, dropped, repeated, incomplete and outside, of all ranks together;
- `error`: the type of an error. `frames_decoded` is reported, and not compared.

All that a configuration delivers is compared with plain passes in the same run: an epoch over all
ranks and workers together; and an epoch with a resume in the middle over both parts together,
before the state on the first ranks and behind it on the later ones. A difference is a *fault*,
whatever the file says.

- `last_batch="keep"`: the clips of the plain pass, each as often.
- `"repeat"`: at least these. Repeated ones are as many as `stats` counts, fewer than ranks and
  workers; with a budget, as many as `stats` counts.
- `"drop"`: at most these. Dropped ones are as many as `stats` counts, fewer than a batch of each
  rank and worker.
- A mix: the epochs of each source in turn, all clips of those that have ended, and some of the last
  one. If functions or fractions of `repeat` choose the clips of epochs: some of their clips. Each
  source is within a clip of its share; in batches of one source, within a batch.
- Map style: the clips by number, singly and in batches.

**What depends on the order is left out**, by these rules:

- `is_first` and `is_last` of sequences. `cu_seqlens` is compared with the clips' lengths instead.
- In batches of a budget, the padding behind lists of frames, up to the longest one of the batch.
- A number of frames that is drawn for each batch, as of `clip_len=(2, 5)`, depends on the number of
  the batch. The plain pass has the most frames, and a clip must be the beginning of one; with
  `subset`, there is a plain pass for each number. In `columns`, the numbers of frames are left out,
  here and with budgets.
- Sizes of batches and counts: of budgets, which are checked instead; of mixes that end with a
  source; of sequences with `last_batch="keep"`; if `repeat` has fractions; and of an epoch that
  several ranks begin with `last_batch="repeat"`, which may repeat clips before or behind the state.
  Sizes behind a state of several ranks or workers with `last_batch="keep"`: the order decides which
  of them have a clip more.
- Whether a limit of memory suffices for larger batches: a resume with a limit keeps their size.

Random numbers that depend on seed, epoch and sample are compared: crops, flips, dilations,
directions, goals, subsets, the choices of functions, and which rows a fraction of `repeat` adds.
Crops by number take their seed from torch's generator, so this is set before each call.

Columns that are gone are left out by name: `clip_digests.WITHDRAWN_COLUMNS`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from math import ceil, floor
from pathlib import Path
from typing import Any

import hypothesis
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import Budget, SeqRecordIterableDataset, SeqRecordMix
from seqrecord.errors import SeqRecordError
from tests.loader.clip_digests import Clip, Delivery, Plain, Reader, short_digest
from tests.loader.clip_model import GROUPS, write_all
from tests.loader.configurations import (
    OF_STREAMS,
    PROCESSES,
    drawn,
    make_mix,
    maker,
    sources_of_mix,
    text_of,
)

__all__ = ["GOLDEN", "Outcome", "differences", "is_drawn_differently", "main", "open_records"]
__all__ += ["outcome_of", "read_file", "write_file"]

GOLDEN = Path(__file__).parents[1] / "golden" / "unordered.jsonl.gz"

CAMERA = {"fx": 20.0, "fy": 21.0, "cx": 7.0, "cy": 5.5, "skew": 0.25, "k1": 0.01, "k2": 0.002}
"""Of all episodes, so that crops of a version that adds columns of cameras do."""

SUBJECTS = ("rows", "values", "copies", "columns", "sizes", "counts", "error")
CONSTANTS = ("clips_incomplete", "clips_outside")
FIXED = (
    *("skip_first", "skip_last", "every", "inside", "tagging", "dilate", "reverse", "subset"),
    *("copies", "final_goal", "future_goal"),
)
"""Functions of samples that choose the same clips in each epoch, `every` unless it rotates."""

MOST_EPOCHS = 256  # of a source of a mix, until a clip counts as wrong


@dataclass
class Outcome:
    """What a configuration delivered.

    Attributes:
        clips: of plain passes without `repeat`.
        copies: of plain passes with `repeat`.
        columns: names and forms of columns.
        sizes: each size of batches with its number.
        has_odd_sizes: whether some follow a state of several ranks or workers with "keep".
        counts: of clips, of each epoch.
        frames_decoded: sum of all iterations.
        error: type of an error.
        faults: differences from plain passes.
    """

    clips: list[Clip] = field(default_factory=list)
    copies: list[Clip] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)
    sizes: list[Any] = field(default_factory=list)
    has_odd_sizes: bool = False
    counts: list[Any] = field(default_factory=list)
    frames_decoded: int = 0
    error: str = ""
    faults: list[str] = field(default_factory=list)

    def add(self, delivery: Delivery, *, has_sizes: bool) -> None:
        """Add what is recorded of an epoch, or of a part of one."""
        self.columns |= delivery.columns
        if has_sizes:
            self.sizes.append(sorted(Counter(chain.from_iterable(delivery.sizes)).items()))

    def check(
        self, what: str, clips: Sequence[Clip], plain: Plain, *, repeated: int = 0, missing: int = 0
    ) -> None:
        """Note clips that a plain pass lacks, and more repeated or missing ones than these."""
        rows = [plain.row_of(clip) for clip in clips]
        for clip, row in zip(clips, rows, strict=True):
            if row is None:
                self.faults.append(f"{what}: {plain.difference(clip)}")
        found = Counter(row for row in rows if row is not None)
        for problem, difference, most in (
            ("repeated", found - plain.rows, repeated),
            ("missing", plain.rows - found, missing),
        ):
            if difference.total() > most:
                names = sorted(name for name, _ in difference.elements())
                self.faults.append(f"{what}: {len(names)} {problem}, at most {most}: {names[:5]}")

    def check_again(self, what: str, part: Delivery, epoch: Delivery) -> None:
        """Check that ranks deliver the beginning of an epoch again."""
        for again, clips in zip(part.clips, epoch.clips, strict=False):
            if [clip.digest for clip in again] != [clip.digest for clip in clips[: len(again)]]:
                self.faults.append(f"{what}: other clips")

    def line(self, number: int, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """The line of a file, with digests of 8 hexadecimal digits."""

        def text(*parts: bytes | str) -> str:
            return short_digest(*parts).hex()[:8] if parts and not self.error else ""

        return {
            "number": number,
            "configuration": configuration_digest(configuration),
            "rows": text(*sorted(clip.name for clip in self.clips)),
            "values": text(*sorted(clip.digest for clip in self.clips)),
            "copies": text(*sorted(clip.digest for clip in self.copies)),
            "columns": text(*sorted(self.columns)),
            "sizes": "" if self.has_odd_sizes else text(json.dumps(self.sizes)),
            "counts": text(json.dumps(self.counts)),
            "error": self.error,
            "frames_decoded": self.frames_decoded,
        }


def outcome_of(records: Any, configuration: Mapping[str, Any]) -> Outcome:
    """Iterate over the loaders of a configuration, and compare them with plain passes."""
    outcome, kind = Outcome(), configuration["kind"]
    try:
        if kind == "map style":
            read_by_number(outcome, records, configuration)
        elif kind == "mix":
            read_mix(outcome, records, configuration)
        elif kind in PROCESSES:
            read_with_processes(outcome, records, configuration)
        else:
            read_stream(outcome, records, configuration)
    except SeqRecordError as error:  # messages may change
        outcome.error = type(error).__name__
    except Exception as error:  # of a loader that is wrong; others are compared
        outcome.faults.append(f"{type(error).__name__}: {error}")
    return outcome


# ---- plain passes


def plain_of_stream(records: Any, options: Mapping[str, Any], epoch: int) -> Plain:
    """Plain passes over an epoch of a stream."""
    left_out = ("engine", "memory_limit", "device", "rank")
    plain_options = {name: value for name, value in options.items() if name not in left_out}
    size = 1 if "order" in options else 16  # a sequence for each row
    plain_options |= {"shuffle": False, "last_batch": "keep", "batch_size": size}
    reader = Reader(options, [])  # batches are not within the budget

    def read(clip_len: int | None) -> list[Clip]:
        more = {} if clip_len is None else {"clip_len": clip_len}
        stream = SeqRecordIterableDataset(records, **{**plain_options, **more}, rank=(0, 1))
        stream.set_epoch(epoch)
        reader.read(stream, delivery := Delivery())
        return delivery.all_clips

    return plain_passes(options, reader, read)


def plain_passes(
    options: Mapping[str, Any], reader: Reader, read: Callable[[int | None], list[Clip]]
) -> Plain:
    """One pass; of a subset whose number of frames is drawn, one for each number."""
    clip_len: Any = options.get("clip_len")
    if not isinstance(clip_len, tuple):
        return Plain({None: read(None)})
    least, most = clip_len
    numbers = range(least, most + 1) if reader.has_subset else (most,)
    return Plain({number: read(number) for number in numbers}, draws_lengths=True)


def repeats_of(options: Mapping[str, Any]) -> dict[str, float] | None:
    """The column `repeat` by row; empty if a function adds it, `None` without one."""
    samples = options.get("samples") or ()
    for one in samples:
        if isinstance(one, dict) and "repeat" in one:
            return {str(row): times for row, times in zip(one["row"], one["repeat"], strict=True)}
    return {} if any(getattr(one, "name", "") == "copies" for one in samples) else None


def without_repeats(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a loader that delivers each row once."""
    samples = [
        {name: column for name, column in one.items() if name != "repeat"}
        if isinstance(one, dict)
        else one
        for one in options["samples"]
        if getattr(one, "name", "") != "copies"
    ]
    found = {name: value for name, value in options.items() if name != "samples"}
    return {**found, "samples": samples} if samples else found


def has_fractions(options: Mapping[str, Any]) -> bool:
    """Whether the seed decides how often an epoch has a row."""
    return any(times % 1 for times in (repeats_of(options) or {}).values())


def add_plain(
    outcome: Outcome, plain: Plain, options: Mapping[str, Any], once: Callable[[Any], Plain]
) -> None:
    """Record plain passes; `once` makes those of other arguments, without `repeat`."""
    repeats = repeats_of(options)
    if repeats is None:
        outcome.clips += plain.clips
        return
    outcome.copies += plain.clips
    outcome.clips += once(without_repeats(options)).clips


def check_repeats(outcome: Outcome, plain: Plain, options: Mapping[str, Any]) -> None:
    """Check that each row comes as often as its `repeat` says, rounded up or down."""
    repeats = repeats_of(options) or {}
    for name, count in Counter(clip.name for clip in plain.clips).items():
        times = repeats.get(name.split()[-1], count)
        if not floor(times) <= count <= ceil(times):
            outcome.faults.append(f"clip {name!r} comes {count} times, its repeat is {times}")


# ---- streams


def read_stream(outcome: Outcome, records: Any, configuration: Mapping[str, Any]) -> None:
    """Two epochs on all ranks, and a resume in the middle of the first one on other ranks."""
    options, make = configuration["options"], maker(records, configuration)
    ranks, first_epoch, taken = (configuration[name] for name in ("ranks", "epoch", "taken"))
    is_loader = configuration["kind"] == "loader"
    reader, loaders = Reader(options, outcome.faults), list[Any]()
    epochs = {first_epoch: Delivery(), first_epoch + 1: Delivery()}
    counts = {epoch: Counter[str]() for epoch in epochs}
    for rank in range(ranks):
        loaders.append(loader := make((rank, ranks)))
        loader.set_epoch(first_epoch)
        for epoch, delivery in epochs.items():
            length = len(loader)
            batches = DataLoader(loader, None, collate_fn=dict) if is_loader else loader
            number = reader.read(batches, delivery)
            counts[epoch].update(counts_of(outcome, loader, delivery))
            if number != length:
                outcome.faults.append(f"epoch {epoch}: {number} batches, len is {length}")
    plain = {}
    for epoch, delivery in epochs.items():
        plain[epoch] = plain_of_stream(records, options, epoch)
        add_plain(outcome, plain[epoch], options, partial(plain_of_stream, records, epoch=epoch))
        check_repeats(outcome, plain[epoch], options)
        check_epoch(outcome, f"epoch {epoch}", delivery, plain[epoch], options, counts[epoch])
    outcome.counts.append([loaders[0].stats().get(name) for name in CONSTANTS])

    begun = epochs[first_epoch]
    is_whole = taken >= begun.shortest
    first, states = Delivery(), list[Any]()
    for loader in loaders:
        loader.set_epoch(first_epoch)
        reader.read(loader if is_whole or taken else (), first, None if is_whole else taken)
        states.append(loader.state_dict())
    outcome.check_again("an epoch is set again", first, begun)
    # With "keep", other ranks may have ended before, and their states are of the next epoch.
    lengths = [*map(len, begun.sizes)]
    state = json.loads(json.dumps(states[lengths.index(max(lengths))]))

    size, later = configuration["later size"], configuration["later ranks"]
    more = {} if size is None or "memory_limit" in options else {"batch_size": size}
    second, resumed_counts = Delivery(), Counter[str]()
    for rank in range(later):
        loader = make((rank, later), **more)
        loader.load_state_dict(state)
        if is_whole and configuration["kind"] == "node" and reader.read(loader, Delivery()):
            outcome.faults.append("batches behind the end of a node")  # torchdata expects none
        reader.read(loader, second)
        resumed_counts.update(counts_of(outcome, loader, second))
    what = "the next epoch" if is_whole else "a resumed epoch"
    expected = plain[first_epoch + is_whole]
    resumed = second if is_whole else second.with_clips(first)
    earlier_ranks = 1 if is_whole else ranks
    check_epoch(
        outcome, what, resumed, expected, {**options, **more}, resumed_counts, earlier_ranks
    )


def counts_of(outcome: Outcome, loader: Any, delivery: Delivery) -> dict[str, int]:
    """Counts of a rank's last iteration, after a check of its clips and batches."""
    stats = loader.stats()
    outcome.frames_decoded += stats["frames_decoded"]
    delivered = len(delivery.clips[-1]), len(delivery.sizes[-1])
    if (stats["clips"], stats["batches"]) != delivered:
        outcome.faults.append(
            f"{delivered} clips and batches, stats has {stats['clips']}, {stats['batches']}"
        )
    return {name: stats[name] for name in ("clips", "clips_dropped", "duplicate_clips")}


def check_epoch(
    outcome: Outcome,
    what: str,
    delivery: Delivery,
    plain: Plain,
    options: Mapping[str, Any],
    counts: Mapping[str, int],
    earlier_ranks: int = 1,
) -> None:
    """Check the clips of an epoch, of all ranks, by its `last_batch`, and record the rest.

    Of several earlier ranks, before a resume, each but one may have repeated a clip.
    """
    last_batch, size, sizes = options["last_batch"], options["batch_size"], delivery.sizes
    repeated, dropped = counts["duplicate_clips"], counts["clips_dropped"]
    uncounted = earlier_ranks - 1 if last_batch == "repeat" else 0
    outcome.check(what, delivery.all_clips, plain, repeated=repeated + uncounted, missing=dropped)
    num_more = len(delivery.all_clips) - plain.rows.total()
    has_budget = isinstance(size, Budget)
    most_repeated = len(sizes) - 1 if last_batch == "repeat" else 0
    most_dropped = len(sizes) * (size or 1) - 1 if last_batch == "drop" else 0
    are_few = has_budget or (repeated <= most_repeated and dropped <= most_dropped)
    if not 0 <= num_more - (repeated - dropped) <= uncounted or not are_few:
        outcome.faults.append(
            f"{what}: {num_more} more clips, stats has {repeated} repeated, {dropped} dropped"
        )
    has_equal = len({*map(len, sizes)} if has_budget else {*map(tuple, sizes)}) == 1
    if last_batch != "keep" and not has_equal:
        outcome.faults.append(f"{what}: ranks have batches of {sizes}")
    outcome.has_odd_sizes |= last_batch == "keep" and earlier_ranks > 1
    has_sizes = are_sizes_fixed(options) and not uncounted
    outcome.add(delivery, has_sizes=has_sizes)
    if has_sizes:
        outcome.counts.append(sorted(counts.items()))


def are_sizes_fixed(options: Mapping[str, Any]) -> bool:
    """Whether every order has the same sizes of batches."""
    in_whole_rows = "order" in options and options["last_batch"] == "keep"
    has_budget = isinstance(options["batch_size"], Budget)
    return not (has_budget or in_whole_rows or has_fractions(options))


# ---- map style


def read_by_number(outcome: Outcome, records: Any, configuration: Mapping[str, Any]) -> None:
    """All clips singly, and in batches of four from the last one to the first."""
    given = configuration["options"].items()
    options = {name: value for name, value in given if name not in OF_STREAMS}
    reader, epoch = Reader(options, outcome.faults), configuration["epoch"]
    dataset = seqrecord.SeqRecordMapDataset(records, **options)
    dataset.set_epoch(epoch)

    def read(numbers: Sequence[int]) -> Any:
        torch.manual_seed(epoch)
        return dataset.__getitems__(numbers)

    singles, batches, numbers = Delivery(), Delivery(), range(len(dataset))
    reader.read((read([number])[0] for number in numbers), singles)
    fours = [numbers[first : first + 4][::-1] for first in numbers[::4]][::-1]
    reader.read((seqrecord.collate(read(four)) for four in fours), batches)
    outcome.check("in batches", batches.all_clips, Plain({None: singles.all_clips}))
    outcome.clips += singles.all_clips
    for delivery in (singles, batches):
        outcome.add(delivery, has_sizes=True)
    outcome.frames_decoded += dataset.stats()["frames_decoded"]


# ---- worker processes


def read_with_processes(outcome: Outcome, records: Any, configuration: Mapping[str, Any]) -> None:
    """An epoch of all ranks with two workers each, and a resume.

    A state of the loader resumes on other ranks with one worker, a state of a `StatefulDataLoader`
    on the same ranks.
    """
    options = {n: v for n, v in configuration["options"].items() if n != "memory_limit"}
    ranks, epoch, later = (configuration[name] for name in ("ranks", "epoch", "later ranks"))
    is_stateful = configuration["kind"] == "stateful workers"
    kind: Any = StatefulDataLoader if is_stateful else DataLoader
    reader = Reader(options, outcome.faults)

    def make(rank: int, num_ranks: int, num_workers: int = 2) -> tuple[Any, Any]:
        stream = SeqRecordIterableDataset(records, **options, rank=(rank, num_ranks))
        return stream, kind(stream, batch_size=None, num_workers=num_workers, collate_fn=dict)

    whole, loaders = Delivery(), [make(rank, ranks) for rank in range(ranks)]
    for stream, loader in loaders:
        stream.set_epoch(epoch)
        reader.read(loader, whole)
    plain = plain_of_stream(records, options, epoch)
    add_plain(outcome, plain, options, partial(plain_of_stream, records, epoch=epoch))
    check_repeats(outcome, plain, options)
    check_workers(outcome, "an epoch of workers", whole, plain, options, 2 * ranks)

    first, second, states = Delivery(), Delivery(), list[Any]()
    taken = max(0, min(configuration["taken"], whole.shortest - 1))
    for stream, loader in loaders:
        stream.set_epoch(epoch)
        reader.read(loader, first, taken)
        states.append(loader.state_dict() if is_stateful else stream.state_dict(batches=taken))
    outcome.check_again("an epoch of workers is set again", first, whole)
    for rank in range(ranks if is_stateful else later):
        stream, loader = make(rank, ranks) if is_stateful else make(rank, later, 1)
        (loader if is_stateful else stream).load_state_dict(states[rank if is_stateful else -1])
        reader.read(loader, second)
    shards, both = 2 * ranks if is_stateful else later, second.with_clips(first)
    what, earlier = "a resumed epoch of workers", 1 if is_stateful else 2 * ranks
    check_workers(outcome, what, both, plain, options, shards, earlier)


def check_workers(
    outcome: Outcome,
    what: str,
    delivery: Delivery,
    plain: Plain,
    options: Mapping[str, Any],
    shards: int,
    earlier_shards: int = 1,
) -> None:
    """Check the clips of all workers, whose counts stay in their processes."""
    last_batch, size = options["last_batch"], options["batch_size"]
    repeated = shards - 1 + earlier_shards - 1
    if isinstance(size, Budget):
        repeated = len(delivery.all_clips)
    outcome.check(
        what,
        delivery.all_clips,
        plain,
        repeated=repeated if last_batch == "repeat" else 0,
        missing=shards * (size or 1) - 1 if last_batch == "drop" else 0,
    )
    is_uneven = last_batch == "repeat" and earlier_shards > 1
    outcome.has_odd_sizes |= last_batch == "keep" and shards > 1
    outcome.add(delivery, has_sizes=are_sizes_fixed(options) and not is_uneven)


# ---- mixes


def read_mix(outcome: Outcome, records: Any, configuration: Mapping[str, Any]) -> None:
    """All epochs up to the second one of a configuration, and a resume in the first of the two."""
    options, end = configuration["options"], configuration["end"]
    ranks, epoch, taken = (configuration[name] for name in ("ranks", "epoch", "taken"))
    reader, epochs = Reader(options, outcome.faults), [Delivery() for _ in range(epoch + 2)]
    mixes = [make_mix(records, configuration, (rank, ranks), {}) for rank in range(ranks)]
    for mix in mixes:
        for number, delivery in enumerate(epochs):
            length, batches = len(mix), reader.read(mix, delivery)
            clips, counted = len(delivery.clips[-1]), mix.stats()["clips"]
            if (batches, clips) != (length, counted):
                outcome.faults.append(
                    f"epoch {number}: {batches} batches, len is {length}; {clips} clips, stats has "
                    f"{counted}"
                )
    for number, delivery in enumerate(epochs):
        if len({*map(tuple, delivery.sizes)}) > 1:
            outcome.faults.append(f"epoch {number}: ranks have batches of {delivery.sizes}")
    sources = {
        name: PlainSource(records, options, name) for name in sources_of_mix(records, options)
    }
    check_shares(outcome, mixes[0], epochs)
    for source in sources.values():
        check_source(outcome, source, epochs, ranks)
        for number, plain in enumerate(source.epochs(2)):
            once = partial(plain_of_source, records, name=source.name, epoch=number)
            add_plain(outcome, plain, options, once)
    for delivery in epochs[-2:]:
        outcome.add(delivery, has_sizes=isinstance(end, int))
    outcome.counts.append([mixes[0].stats().get(name) for name in CONSTANTS])

    begun, first, second, state = epochs[epoch], Delivery(), Delivery(), None
    is_whole = taken >= begun.shortest
    for mix in mixes:
        mix.set_epoch(epoch)
        reader.read(mix if is_whole or taken else (), first, None if is_whole else taken)
        state = mix.state_dict()
    outcome.check_again("an epoch of a mix is set again", first, begun)
    later = configuration["later ranks"]
    for rank in range(later):
        mix = make_mix(records, configuration, (rank, later), {})
        mix.load_state_dict(json.loads(json.dumps(state)))
        reader.read(mix, second)
    for clip in second.all_clips:
        source = sources[clip.name.split()[0]]
        if not source.has(clip):
            outcome.faults.append(f"a resumed mix: {source.difference(clip)}")
    if later == ranks:  # others continue with the next epoch
        rest = epochs[epoch + 1].clips
        if not is_whole:
            pairs = zip(first.clips, begun.clips, strict=True)
            rest = [clips[len(delivered) :] for delivered, clips in pairs]
        outcome.check_again("a resumed mix", second, Delivery(rest))
        if sum(map(len, second.clips)) != sum(map(len, rest)):
            outcome.faults.append("a resumed mix has another number of clips")


class PlainSource:
    """Plain passes over epochs of a source: a mix of this source alone, clip by clip.

    An epoch of this mix is one of the source. If these differ in length, it is a part of the stream
    of all epochs that is as long as the first one.

    Attributes:
        has_fixed_rows: whether the source has the same clips in each epoch.
    """

    def __init__(self, records: Any, options: Mapping[str, Any], name: str) -> None:
        self.name, self._records, self._options = name, records, options
        self._reader, self._epochs = Reader(options, []), list[Plain]()
        self._mixes = dict[int | None, SeqRecordMix]()
        functions = [one for one in options.get("samples") or () if not isinstance(one, dict)]
        self.has_fixed_rows = not has_fractions(options) and all(
            one.name in FIXED and not (one.name == "every" and one.arguments["rotate"])
            for one in functions
        )

    def epochs(self, number: int) -> Sequence[Plain]:
        """Plain passes over the first epochs."""
        while len(self._epochs) < number:
            self._epochs.append(plain_passes(self._options, self._reader, self._read))
        return self._epochs[:number]

    def _read(self, clip_len: int | None) -> list[Clip]:
        if clip_len not in self._mixes:
            more = {"shuffle": False} | ({} if clip_len is None else {"clip_len": clip_len})
            source = sources_of_mix(self._records, self._options, **more)[self.name]
            seed = self._options["seed"]
            mix = SeqRecordMix({self.name: source}, batch_size=1, seed=seed, rank=(0, 1))
            self._mixes[clip_len] = mix
        self._reader.read(self._mixes[clip_len], delivery := Delivery())
        return delivery.all_clips

    def has(self, clip: Clip) -> bool:
        """Whether a clip is in one of the first epochs."""
        numbers = range(MOST_EPOCHS)
        return any(self.epochs(n + 1)[n].row_of(clip) is not None for n in numbers)

    def difference(self, clip: Clip) -> str:
        """See `Plain.difference`."""
        return self.epochs(1)[0].difference(clip)


def plain_of_source(records: Any, options: Mapping[str, Any], name: str, epoch: int) -> Plain:
    """Plain passes over an epoch of a source."""
    return PlainSource(records, options, name).epochs(epoch + 1)[epoch]


def check_source(
    outcome: Outcome, source: PlainSource, epochs: Sequence[Delivery], ranks: int
) -> None:
    """Check the clips of a source over all epochs of a mix."""
    streams = [
        [
            clip
            for delivery in epochs
            for clip in delivery.clips[rank]
            if clip.name.split()[0] == source.name
        ]
        for rank in range(ranks)
    ]
    if not source.has_fixed_rows:
        for clip in chain.from_iterable(streams):
            if not source.has(clip):
                outcome.faults.append(f"a mix: {source.difference(clip)}")
        return
    total = source.epochs(1)[0].rows.total()
    length = ceil(total / ranks)
    for number in range(ceil(max(map(len, streams)) / length)):
        parts = [stream[number * length : (number + 1) * length] for stream in streams]
        is_whole = all(len(part) == length for part in parts)
        outcome.check(
            f"epoch {number} of {source.name}",
            [*chain.from_iterable(parts)],
            source.epochs(number + 1)[number],
            repeated=ranks * length - total,
            missing=0 if is_whole else total,
        )


def check_shares(outcome: Outcome, mix: SeqRecordMix, epochs: Sequence[Delivery]) -> None:
    """Check that each rank has of each source its share, to less than a clip or batch."""
    in_batches = mix.single_source_batches
    for rank in range(len(epochs[0].sizes)):
        counts, total = Counter[str](), 0
        for delivery in epochs:
            names = iter([clip.name.split()[0] for clip in delivery.clips[rank]])
            for size in delivery.sizes[rank]:
                of_batch = [*islice(names, size)]
                if in_batches and len({*of_batch}) > 1:
                    outcome.faults.append(f"a batch of one source has clips of {of_batch}")
                counts.update(of_batch[:1] if in_batches else of_batch)
                total += 1 if in_batches else size
                for name, share in mix.shares.items():
                    if abs(counts[name] - total * share) >= 1:
                        outcome.faults.append(f"{name} has {counts[name]} of {total}, not {share}")


# ---- files, and the command


def open_records(folder: Path) -> seqrecord.Dataset:
    """Write and open the dataset of all configurations."""
    return seqrecord.open(write_all(folder / "records", GROUPS, {"camera": CAMERA}))


def write_file(path: Path, seed: int, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines, after one about all of them."""
    header = {"seed": seed, "count": len(lines), "hypothesis": hypothesis.__version__}
    texts = [json.dumps(line, separators=(",", ":")) for line in (header, *lines)]
    path.write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode(), 9, mtime=0))


def read_file(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line of a file, and the others."""
    header, *lines = map(json.loads, gzip.decompress(path.read_bytes()).decode().splitlines())
    return header, lines


def is_drawn_differently(configuration: Mapping[str, Any], golden: Mapping[str, Any]) -> bool:
    """Whether a number has another configuration than in a file.

    For example, another version of hypothesis may draw it, or a strategy makes another choice.
    """
    return bool(configuration_digest(configuration) != golden["configuration"])


def configuration_digest(configuration: Mapping[str, Any]) -> str:
    return short_digest(text_of(configuration)).hex()[:8]


def differences(line: Mapping[str, Any], golden: Mapping[str, Any]) -> list[str]:
    """The subjects in which a line differs from the recorded one."""
    compared = [name for name in SUBJECTS if line[name] or name != "sizes"]
    return [subject for subject in compared if line[subject] != golden[subject]]


def main(options: argparse.Namespace, folder: Path) -> int:
    """Compare or record configurations; returns the exit status."""
    records = open_records(folder)
    header: dict[str, Any] = {"seed": options.seed}
    golden = dict[int, dict[str, Any]]()
    if options.compare is not None:
        header, recorded = read_file(options.compare)
        golden = {line["number"]: line for line in recorded}
    numbers = options.only or range(options.count)
    lines, num_differing, decoded = list[dict[str, Any]](), 0, 0
    for number, configuration in zip(numbers, drawn(header["seed"], numbers), strict=True):
        outcome = outcome_of(records, configuration)
        lines.append(line := outcome.line(number, configuration))
        problems = list(outcome.faults)
        if options.compare is not None:
            if number not in golden:
                problems.append(f"not in {options.compare}")
            elif is_drawn_differently(configuration, golden[number]):
                problems.append(f"drawn differently than by hypothesis {header['hypothesis']}")
            else:
                problems += differences(line, golden[number])
                decoded += golden[number]["frames_decoded"]
        num_differing += bool(problems)
        if problems:
            report(f"{number}: {'; '.join(problems[:8])}: {text_of(configuration)}")
        if options.show:
            show(outcome)
    if options.to is not None:
        write_file(options.to, header["seed"], lines)
    refused = sum(bool(line["error"]) for line in lines)
    frames = sum(line["frames_decoded"] for line in lines)
    report(f"{frames:,} frames decoded" + (f", {decoded:,} when recorded" if golden else ""))
    report(f"{len(lines)} configurations, {refused} refused, {num_differing} differ")
    return bool(num_differing)


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show(outcome: Outcome) -> None:
    """Print all clips and what else is recorded, for a `diff` of two versions."""
    for clip in sorted(chain(outcome.clips, outcome.copies), key=lambda clip: clip.name):
        columns = (
            f"{name}={(b''.join(value) if isinstance(value, tuple) else value).hex()}"
            for name, value in sorted(clip.columns.items())
        )
        report(f"{clip.name}: {' '.join(columns)}")
    for name in ("columns", "sizes", "counts", "error"):
        report(f"{name}: {getattr(outcome, name)}")
