"""A job of any loader, number of ranks and arguments, compared with a model in every step.

Interface of the machine. `job` draws arguments and begins; the rules then act on all ranks:

- `take` some batches, `finish` an epoch, `restart` in the middle of one;
- `save` a state, `resume` one on as many ranks or others, with another batch size or more memory;
- `set_epoch` to an epoch or to a place in it, `set_samples` between epochs, `copy` the loaders;
- ranks may have DataLoaders with workers (`WorkerMachine`);
- `refuse` a state of other arguments, `read_by_number` from the map-style dataset;
- `damage_cache`: change or remove a file of the frame cache.

Invariants, after any rules:

- Every value, mask and column of a clip equals the model of `clip_model`, or of `table_model` for
  tables, lists of frames, anchors, functions and draws; models read no file.
- Frames are decoded for clips that need them, and once; a frame cache changes no batch or state.
- An epoch has every clip of the model, and each copy of it, exactly once over all ranks and parts;
  a part is the yield of equal ranks. Duplicates only even out ranks, and `last_batch` determines
  their number.
- Batches and their order equal an uninterrupted run of the part, with any class of loader.
- Ranks have equal numbers of batches (`last_batch="keep"`: at most one more) and equal states.
- `len`, `stats()` and the peak memory agree with the batches.
"""

from __future__ import annotations

import json
import pickle
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    Budget,
    ClipError,
    FrameCache,
    SeqRecordIterableDataset,
    SeqRecordMix,
    SeqRecordPipe,
    StateError,
)
from seqrecord.samples import every, skip_last
from tests.kit.clip_data import minimum_memory
from tests.loader.clip_model import (
    Case,
    Clip,
    Copies,
    cases,
    check_by_number,
    check_rows,
    equal,
)
from tests.loader.resume_contract import Direct
from tests.loader.table_model import DECODED, Recording, TableCase, case_of, table_cases

KINDS: Any = {"pipe": SeqRecordPipe, "stream": SeqRecordIterableDataset, "node": Direct}
SIZES = (1, 3, 4, 7)
MOST_RANKS = 4
FOLDERS = ("lab", "kitchen")
SAMPLES = (None, [every(2)], [every(3, rotate=True)], [skip_last(2)], [Copies((1, 3))])


@dataclass(frozen=True)
class Part:
    """The batches of equal ranks in an epoch, from its begin or from a state.

    `given` are the clips of earlier parts, `options` the arguments of all ranks; each rank has a
    DataLoader with `workers`, if any. Epochs of a mix after that of the state are no `rest`.
    """

    options: Any
    epoch: int
    ranks: int
    state: str | None = None
    given: tuple[Clip, ...] = ()
    workers: int = 0
    rest: bool = True

    @property
    def key(self) -> str:
        return repr((sorted(self.options.items()), replace(self, options=None, given=())))

    @property
    def shards(self) -> int:
        return self.ranks * max(1, self.workers)


@dataclass(frozen=True)
class Place:
    """A position: a part, and the batches that each rank has returned of it."""

    part: Part
    batch: int = 0


class LoaderMachine(RuleBasedStateMachine):
    records: seqrecord.Dataset
    cache: Path
    """Folder for the frame caches of all examples."""

    is_mix = False
    most_workers = 0
    saved = Bundle("saved")

    def __init__(self) -> None:
        super().__init__()
        self.wholes: dict[str, list[list[Any]]] = {}
        self.frames = Path(tempfile.mkdtemp(dir=self.cache))
        self.is_damaged = False
        self.recorders = 0  # number of the latest `Recording`
        self.drawn: dict[str, dict[int, list[Clip]]] = {}  # samples: epoch: clips

    @initialize(
        case=st.booleans().flatmap(lambda rated: cases(rated=rated, has_copies=True)),
        kind=st.sampled_from([*KINDS]),
        ranks=st.integers(1, MOST_RANKS),
        workers=st.integers(0, 2),
        is_cached=st.sampled_from([False, False, False, True]),
    )
    def job(self, case: Case, kind: str, ranks: int, workers: int, is_cached: bool) -> None:
        options = dict(case.options)
        if is_cached and "frame_transform" not in options:
            options["frame_cache"] = FrameCache(self.frames, "1GiB")
        if not case.clips:
            with pytest.raises(ClipError):
                self.make(Part({**options, "memory_limit": None}, 0, 1))
        assume(case.clips and case.smallest)
        if options.get("memory_limit") == "least":
            options["memory_limit"] = max(
                minimum_memory(lambda n=n, **given: self.make(Part({**options, **given}, 0, n)))
                for n in range(1, MOST_RANKS + 1)
            )
        if (
            case.smallest < MOST_RANKS * max(SIZES) * max(1, self.most_workers)
            and options["last_batch"] == "drop"
        ):
            options["last_batch"] = "keep" if case.copies() else "repeat"  # or it may have no batch
        part = Part(options, 0, ranks, workers=min(workers, self.most_workers))
        self.go(kind, Place(part))
        note(f"{kind} {part}")

    # ---- the model

    def make(self, part: Part, kind: str = "stream", **more: Any) -> list[Any]:
        """The loaders of all ranks."""
        options, ranks = {**part.options, **more}, part.ranks
        return [KINDS[kind](self.records, **options, rank=(rank, ranks)) for rank in range(ranks)]

    def clips(self, part: Part) -> list[Clip]:
        """The clips of a part's epoch in order, with copies.

        If the seed decides, a single rank delivers them, and the model checks them.
        """
        case = case_of(part.options)
        if (clips := case.epoch(part.epoch)) is not None:
            return clips
        drawn = self.drawn.setdefault(repr(part.options.get("samples")), {})
        if part.epoch not in drawn:
            (stream,) = self.make(replace(part, ranks=1), last_batch="keep")
            stream.set_epoch(part.epoch)
            found = self.clips_in([*stream], part)
            drawn[part.epoch] = case.drawn_epoch(part.epoch, found, drawn)
        return drawn[part.epoch]

    def clips_in(self, batches: list[Any], part: Part) -> list[Clip]:
        """The clips of a rank's batches, after a check of their values."""
        case = case_of(part.options)
        return [case.check(clip, part.epoch) for batch in batches for clip in case.clips_in(batch)]

    def rest(self, part: Part) -> Counter[Clip]:
        """How often a part has each clip."""
        return Counter(self.clips(part)) - Counter(part.given)

    def counts(self, part: Part) -> tuple[int, int]:
        """The least and the greatest number of clips of a rank, or of a worker."""
        total = self.rest(part).total()
        least, most = total // part.shards, -(-total // part.shards)
        last_batch, size = part.options["last_batch"], part.options["batch_size"] or 1
        if last_batch == "keep":
            return least, most
        least = most if last_batch == "repeat" else least - least % size
        return least, least

    def has_batches(self, part: Part) -> bool:
        """Whether enough clips remain, or none."""
        is_over = not self.rest(part)
        return part.options["last_batch"] != "drop" or self.counts(part)[0] > 0 or is_over

    def whole(self, part: Part) -> list[list[Any]]:
        """Batches of each rank in an uninterrupted run of a part, after a check."""
        if part.key not in self.wholes:
            decoded, batches = list[list[Clip]](), list[list[Any]]()
            streams = self.make(part, **self.recorder(part))
            for stream in streams:
                if part.state is not None:
                    stream.load_state_dict(json.loads(part.state))
                    for epoch in () if part.rest else (part.epoch + 1, part.epoch):
                        stream.set_epoch(epoch)
                else:
                    stream.set_epoch(part.epoch)
                DECODED.clear()
                batches.append([*self.iterate(stream, part)])
                decoded.append(DECODED.pop(self.recorders, []))
            self.wholes[part.key] = batches
            clips = self.check_clips(part, batches)
            if "frame_transform" in part.options and not part.workers and part.state is None:
                self.check_decoded(part, clips, decoded)
            if "frame_cache" in part.options and not part.workers:
                self.check_cache(part, batches, streams)
            if not part.workers:
                self.check_stats(part, clips, batches, streams)
            elif part.state is None:  # workers are shards that take turns
                alone = self.whole(replace(part, ranks=part.shards, workers=0))
                for rank, found in enumerate(batches):
                    parts = alone[rank * part.workers : (rank + 1) * part.workers]
                    turns = (batch for turn in zip_longest(*parts) for batch in turn)
                    assert equal(found, [batch for batch in turns if batch is not None])
        return self.wholes[part.key]

    def recorder(self, part: Part) -> dict[str, Any]:
        """The argument that writes down the frames which new loaders decode."""
        self.recorders += 1
        transform = part.options.get("frame_transform")
        return (
            {"frame_transform": Recording.numbered(transform, self.recorders)} if transform else {}
        )

    @staticmethod
    def iterate(loader: Any, part: Part) -> Any:
        """An iterator over the rest of a rank's epoch."""
        return iter(DataLoader(loader, None, num_workers=part.workers) if part.workers else loader)

    def check_clips(self, part: Part, batches: list[list[Any]]) -> list[list[Clip]]:
        """Check values, and that each clip comes once; returns the clips of each rank."""
        case, size = case_of({**part.options, "rank": part.ranks}), part.options["batch_size"]
        clips = self.clips(part)
        of_ranks = [self.clips_in(rank, part) for rank in batches]
        found = Counter(clip for rank in of_ranks for clip in rank)
        assert found.keys() <= set(clips)
        least, most = self.counts(part)
        rest = self.rest(part)
        repeated = (found - rest).total()
        if not (case.in_rows and part.given):
            assert found.keys() <= rest.keys()
            has_costs = isinstance(case, TableCase) and case.has_costs
            is_even = not ((case.in_rows and part.options["last_batch"] == "keep") or has_costs)
            workers = max(1, part.workers)
            counts = range(least * workers, most * workers + 1)
            assert all(len(rank) in counts for rank in of_ranks) or not is_even
            assert not rest - found or part.options["last_batch"] == "drop"
            limit = part.shards - 1 if part.options["last_batch"] == "repeat" else 0
            if has_costs and limit and repeated and not part.workers:  # batches of a clip each
                assert any(all(len(b["episode"]) == 1 for b in rank) for rank in batches)
            else:
                assert repeated <= limit or (has_costs and part.workers)
            if has_costs and part.options["last_batch"] == "repeat":
                assert len({*map(len, batches)}) == 1
        if part.workers:
            return of_ranks
        if isinstance(case, TableCase) and case.has_costs:
            for rank in batches:
                case.check_costs(rank)
            size = None
        for rank in batches if size and not case.in_rows else []:
            assert all(len(batch["episode"]) == case.full_size(batch) for batch in rank[:-1])
        if part.state is None and part.ranks == 1 and not part.options["shuffle"]:
            assert case.in_rows or of_ranks[0] == clips[: len(of_ranks[0])]
        if case.draws_lengths and not part.workers:  # equally on all ranks
            lengths = [[len(batch["id"][0]) for batch in rank] for rank in batches]
            assert all(
                drawn == longest[: len(drawn)]
                for longest in [max(lengths, key=len)]
                for drawn in lengths
            )
        if case.in_rows and part.state is None:
            for rank in batches:
                check_rows(case, rank)
        return of_ranks

    def check_stats(
        self, part: Part, clips: list[list[Clip]], batches: list[list[Any]], streams: list[Any]
    ) -> None:
        limit, every = part.options.get("memory_limit"), self.clips(part)
        found = [clip for own in clips for clip in own]
        if not part.given:
            repeated = sum(stream.stats()["duplicate_clips"] for stream in streams)
            assert repeated == (Counter(found) - Counter(every)).total()
        if not part.given and part.ranks == 1:
            assert streams[0].stats()["clips_dropped"] == len(every) - len(found)
        case = case_of(part.options)
        incomplete, outside = case.incomplete()
        for stream, rank, own in zip(streams, batches, clips, strict=True):
            stats = stream.stats()
            assert incomplete is None or stats["clips_incomplete"] == incomplete
            assert outside is None or stats["clips_outside"] == outside
            assert (stats["clips"], stats["batches"]) == (len(own), len(rank))
            assert limit is None or stats["peak_buffer_bytes"] <= limit
            if part.state is None:
                stream.set_epoch(part.epoch)
                assert (len(stream), stream.num_clips) == (len(rank), len(every))

    @staticmethod
    def check_decoded(part: Part, clips: list[list[Clip]], decoded: list[list[Clip]]) -> None:
        """A rank decodes the frames of its clips and no others.

        Each once: without other ranks, in order, or of lists; a tenth twice, at cuts.
        """
        case, engine = case_of(part.options), part.options["engine"]
        assert isinstance(case, TableCase)
        fits = "memory_limit" not in part.options and engine.num_cursors is None
        for own, frames in zip(clips, decoded, strict=True):
            least, most = case.decoded(own)
            if part.options["last_batch"] != "drop":
                assert least <= {*frames} <= most
            is_whole = part.ranks == 1 or not part.options["shuffle"] or case.lists_frames
            if fits and not case.copies():  # passes read copies again
                assert len(frames) <= len({*frames}) * (1 if is_whole else 1.1)

    def check_cache(self, part: Part, batches: list[list[Any]], streams: list[Any]) -> None:
        """The cache changes no batch, state or length, and later loaders decode no cached frame."""
        for number, rank in enumerate(batches):
            pair = [self.make(part)[number], self.make(part, frame_cache=None)[number]]
            for stream in pair:
                if part.state is not None:
                    stream.load_state_dict(json.loads(part.state))
                    for epoch in () if part.rest else (part.epoch + 1, part.epoch):
                        stream.set_epoch(epoch)
                else:
                    stream.set_epoch(part.epoch)
                assert equal([*stream], rank)
            cached, plain = (stream.stats() for stream in pair)
            assert plain["frames_from_cache"] == 0
            expected = plain["frames_decoded"] if "image" in part.options["features"] else 0
            assert cached["frames_from_cache"] == expected or self.is_damaged
            states = [stream.state_dict() for stream in (*pair, streams[number])]
            assert states[0] == states[1] == states[2]
            assert len({len(stream) for stream in pair}) == 1

    @precondition(lambda self: "frame_cache" in self.place.part.options)
    @rule(number=st.integers(0, 99), is_removed=st.booleans())
    def damage_cache(self, number: int, is_removed: bool) -> None:
        """Change a byte of a file in the frame cache, or remove it."""
        files = sorted(file for file in self.frames.glob("**/*") if file.is_file())
        self.is_damaged = True
        for file in files[number % max(1, len(files)) :][:1]:
            if is_removed:
                file.unlink()
                continue
            content = bytearray(file.read_bytes())
            if content:
                content[number * 977 % len(content)] ^= 1 << number % 8
            file.write_bytes(content)

    # ---- the job

    def go(self, kind: str, place: Place, loaders: list[Any] | None = None) -> None:
        """Continue with these loaders."""
        kind = "pipe" if place.part.workers else kind  # others need each epoch
        self.kind = kind = "mix" if self.is_mix else kind
        self.place = place
        self.loaders = self.make(place.part, kind) if loaders is None else loaders
        self.iterators: list[Any] | None = None
        self.is_begun = False
        self.is_over = False

    @property
    def takes_samples(self) -> bool:
        """Whether other samples need no other windows or memory."""
        options = self.place.part.options
        if isinstance(case_of(options), TableCase):
            return False
        names = {one.name for one in options.get("samples") or ()}
        is_plain = not names & {"dilate", "reverse"} and "memory_limit" not in options
        return is_plain and not self.is_mix and not self.place.part.workers

    @property
    def has_numbers(self) -> bool:
        """Whether a map-style dataset takes the arguments."""
        case = case_of(self.place.part.options)
        samples = case.options.get("samples") or ()
        repeats = case.copies() or any(isinstance(one, dict) and "repeat" in one for one in samples)
        return not repeats and not case.draws_lengths

    @property
    def next_place(self) -> Place:
        return self.begin_of(self.place.part.epoch + 1) if self.is_begun else self.place

    def begin_of(self, epoch: int) -> Place:
        """The begin of an epoch: a mix continues in what a state has left of its sources."""
        state = self.place.part.state if self.is_mix else None
        return Place(replace(self.place.part, epoch=epoch, state=state, given=(), rest=False))

    def running(self) -> list[Any]:
        if self.iterators is None:
            self.place = self.next_place
            self.iterators = [self.iterate(loader, self.place.part) for loader in self.loaders]
            self.is_begun = self.is_over = False
        return self.iterators

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        """Take some batches on each rank, at most to the last one."""
        iterators = self.running()
        whole, batch = self.whole(self.place.part), self.place.batch
        count = min(count, *(max(0, len(rank) - batch) for rank in whole), count)
        for iterator, rank in zip(iterators, whole, strict=True):
            assert equal([*islice(iterator, count)], rank[batch : batch + count])
        self.is_begun |= count > 0
        self.place = replace(self.place, batch=batch + count)
        if not self.is_mix and not self.place.part.workers:
            every = len(self.clips(self.place.part))
            assert {loader.num_clips for loader in self.loaders} == {every}

    @rule()
    def finish(self) -> None:
        """Take the rest of the epoch on each rank."""
        iterators = self.running()
        for iterator, rank in zip(iterators, self.whole(self.place.part), strict=True):
            assert equal([*iterator], rank[self.place.batch :])
        longest = max(map(len, self.whole(self.place.part)))
        self.place = replace(self.place, batch=max(longest, self.place.batch))
        self.iterators, self.is_begun, self.is_over = None, True, True

    @rule(count=st.integers(1, 3), is_copied=st.booleans())
    def restart(self, count: int, is_copied: bool) -> None:
        """Begin another iteration, with the loaders or copies of them: the next epoch, if one has
        begun."""
        if is_copied:
            self.loaders = pickle.loads(pickle.dumps(self.loaders))
        self.iterators = None
        self.take(count)

    @precondition(lambda self: self.wholes)
    @rule(target=saved)
    def save(self) -> tuple[str, Place]:
        """All ranks have the same state, and saving changes nothing."""
        in_workers = self.is_begun and self.place.part.workers
        taken = {"batches": self.place.batch} if in_workers else {}
        states = [json.dumps(loader.state_dict(**taken)) for loader in self.loaders]
        longest = max(range(len(states)), key=lambda rank: json.loads(states[rank])["batch"])
        is_even = self.place.part.options["last_batch"] != "keep"
        assert len({*states}) == 1 or not (is_even or not self.is_over)
        # With workers, the position behind the last batch is the start of the next epoch.
        is_last = in_workers and self.place.batch >= max(map(len, self.whole(self.place.part)))
        ends = is_last or (self.is_over and self.kind != "node")
        place = self.begin_of(self.place.part.epoch + 1) if ends else self.place
        found = json.loads(states[longest])
        if self.is_begun or place.part.state is None:
            assert (found["epoch"], found["batch"]) == (place.part.epoch, place.batch)
        return states[longest], place

    @rule(
        saved=saved,
        kind=st.sampled_from([*KINDS]),
        ranks=st.none() | st.integers(1, MOST_RANKS),
        size=st.none() | st.sampled_from(SIZES),
        workers=st.none() | st.integers(0, 2),
        has_more_memory=st.booleans(),
    )
    def resume(
        self,
        saved: Any,
        kind: str,
        ranks: int | None,
        size: int | None,
        workers: int | None,
        has_more_memory: bool,
    ) -> None:
        """Continue from a state: with equal ranks, workers and batch size, or others."""
        state, place = saved
        old, more = place.part, dict[str, Any]()
        size = None if self.is_mix or not isinstance(old.options["batch_size"], int) else size
        options, larger = old.options, {"batch_size": size, "memory_limit": None}
        options = options if size is None else {**options, **larger}
        workers = old.workers if workers is None else min(workers, self.most_workers)
        part = replace(old, options=options, ranks=ranks or old.ranks, workers=workers)
        if place.batch or old.state or (self.is_mix and old.epoch):
            is_same = (part.ranks, part.shards) == (old.ranks, old.shards)
            if not is_same and self.is_mix:
                place = Place(replace(part, state=state, rest=True))
            elif not is_same or options["batch_size"] != old.options["batch_size"]:
                whole = self.whole(old)
                given = [c for rank in whole for c in self.clips_in(rank[: place.batch], old)]
                is_over = place.batch >= max(map(len, whole))
                rest = self.clips(old) if is_over else given
                part = replace(part, state=state, given=(*old.given, *rest))
                place = Place(part)
            else:
                place = replace(place, part=part)
                more |= {"memory_limit": None} if has_more_memory else {}
        else:
            place = Place(part)
        kind = "pipe" if workers else kind
        loaders = self.make(place.part, kind, **more)
        for loader in loaders:
            loader.load_state_dict(json.loads(state))
        if self.has_batches(place.part):
            self.go(kind, place, loaders)
        else:
            with pytest.raises(ClipError, match="leaves no batch at all"):
                next(self.iterate(loaders[0], place.part))

    @rule(epoch=st.integers(0, 5), batches=st.integers(0, 6), is_made=st.booleans())
    def set_epoch(self, epoch: int, batches: int, is_made: bool) -> None:
        """Of the next iteration, also of one that is made; a running one continues.

        A pending place in the epoch stays.
        """
        # Workers begin when the DataLoader's iterator is made, so its position is fixed.
        if is_made and not self.iterators and not self.place.part.workers:
            self.running()
        if self.is_mix and self.place.part.state:
            epoch = max(epoch, self.place.part.epoch)
        part = self.begin_of(epoch).part
        batches = min(batches, *map(len, self.whole(part)), batches)
        for loader in self.loaders:
            loader.set_epoch(epoch, batches)
        if self.is_begun and self.iterators:
            one = [*islice(self.iterators[0], 1)]
            assert equal(one, self.whole(self.place.part)[0][self.place.batch :][:1])
        if self.is_begun or batches or epoch != self.place.part.epoch:
            self.place = Place(part, batches)
        if self.is_begun:
            self.iterators = None
        self.is_begun = self.is_over = False

    @precondition(lambda self: self.takes_samples)
    @rule(samples=st.sampled_from(SAMPLES))
    def set_samples(self, samples: Any) -> None:
        """Between epochs; inside one it is an error."""
        place = self.next_place
        if place.batch or place.part.state or (self.iterators and self.is_begun):
            with pytest.raises(StateError, match="set_samples inside an epoch"):
                self.loaders[0].set_samples(samples)
            return
        options = {**place.part.options, "samples": samples}
        part = replace(place.part, options=options)
        case = case_of(options)
        if case.copies() and (case.in_rows or options["last_batch"] == "repeat"):
            return
        if case.clips and self.has_batches(part):
            for loader in self.loaders:
                loader.set_samples(samples)
            self.go(self.kind, Place(part), self.loaders)

    @precondition(lambda self: self.wholes and not self.is_mix and self.has_numbers)
    @rule(number=st.integers(0, 99))
    def read_by_number(self, number: int) -> None:
        """The map-style dataset has the epoch's clips in the order of the model."""
        part, case = self.place.part, case_of(self.place.part.options)
        clips = case.numbered(self.clips(part))
        check_by_number(self.records, case, random.Random(number), clips, part.epoch)

    @rule(saved=saved)
    def refuse(self, saved: Any) -> None:
        """A loader of other arguments refuses a state, and its own does not change."""
        state, place = saved
        options = place.part.options
        other = {"seed": options["seed"] + 1}
        if not options["shuffle"]:
            other = {"last_batch": "drop" if options["last_batch"] == "keep" else "keep"}
        (loader,) = self.make(replace(place.part, options={**options, **other}, ranks=1))
        before = loader.state_dict()
        with pytest.raises(StateError, match=f": .*{next(iter(other))}"):
            loader.load_state_dict(json.loads(state))
        assert loader.state_dict() == before


class TableMachine(LoaderMachine):
    """A job of a table, of functions that choose other samples in each epoch, or of draws."""

    @initialize(
        case=table_cases(),
        kind=st.sampled_from([*KINDS]),
        ranks=st.integers(1, MOST_RANKS),
        workers=st.integers(0, 2),
        is_cached=st.sampled_from([False, False, False, True]),
    )
    def job(self, case: Case, kind: str, ranks: int, workers: int, is_cached: bool) -> None:
        super().job(case, kind, ranks, workers, is_cached)


class WorkerMachine(LoaderMachine):
    """A job whose ranks may have a DataLoader with workers. Starts processes."""

    most_workers = 2


class MixMachine(LoaderMachine):
    """A mix of the dataset's episodes of each folder; each source has epochs of its own."""

    is_mix = True

    @initialize(
        case=cases(),
        ranks=st.integers(1, MOST_RANKS),
        end=st.sampled_from(["first_exhausted", "all_exhausted", 5]),
        weights=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    )
    def job(self, case: Case, ranks: int, end: str | int, weights: tuple[int, int]) -> None:
        kept = {"clip_len", "dilation", "windows", "pad", "features", "metadata", "ragged"}
        common = {n: value for n, value in case.options.items() if n in kept}
        self.begin(common, max(case.batch_size or 0, 3), case.options["seed"], ranks, end, weights)

    def begin(
        self,
        common: dict[str, Any],
        batch_size: Any,
        seed: int,
        ranks: int,
        end: str | int,
        weights: tuple[int, int],
    ) -> None:
        """Begin with a mix of sources that have the arguments `common`."""
        self.common = case_of(common)
        self.sources = {n: case_of({**common, "episodes": f"{n}/*"}) for n in FOLDERS}
        assume(all(source.clips for source in self.sources.values()))
        tables = [source for source in self.sources.values() if isinstance(source, TableCase)]
        if all(source.lists_frames for source in tables):  # padded to the longest list of all
            lists = [frames for source in tables for frames in source.used_lists]
            for source in tables:
                source.used_lists = lists
        options: dict[str, Any] = {"batch_size": batch_size, "seed": seed}
        options |= {"weights": dict(zip(FOLDERS, weights, strict=True)), "stopping_strategy": end}
        self.go("mix", Place(Part(options | {"last_batch": "repeat", "shuffle": True}, 0, ranks)))

    def make(self, part: Part, kind: str = "mix", **more: Any) -> list[Any]:
        options = {**part.options, **more}
        options = {n: value for n, value in options.items() if n not in ("last_batch", "shuffle")}
        return [
            SeqRecordMix(
                {
                    n: SeqRecordIterableDataset(self.records, **source.options)
                    for n, source in self.sources.items()
                },
                **options,
                rank=(rank, part.ranks),
            )
            for rank in range(part.ranks)
        ]

    def has_batches(self, part: Part) -> bool:
        return True

    def check_clips(self, part: Part, batches: list[list[Any]]) -> list[list[Clip]]:
        """A rank's clips of a source are whole epochs of its share, and the rest of one."""
        assert len({*map(len, batches)}) == 1
        columns = {"dataset", *(f"{name}_is_missing" for name in self.sources)}
        for number, rank in enumerate(batches):
            found: dict[str, list[Clip]] = {name: [] for name in self.sources}
            for batch in rank:
                for clip in self.common.clips_in(batch):
                    name = clip["dataset"]
                    plain = {n: value for n, value in clip.items() if n not in columns}
                    found[name].append(self.sources[name].check(plain))
            for name, clips in found.items():
                low, more = divmod(len(self.sources[name].clips), part.ranks)
                share, edges = low + (more > 0), (number * more, (number + 1) * more)
                repeats = low + edges[1] // part.ranks - edges[0] // part.ranks < share
                for start in range(0, len(clips) if part.epoch == 0 else 0, share):
                    epoch = clips[start : start + share]
                    if repeats and len(epoch) == share > 1:
                        assert epoch.pop() == epoch[0]
                    assert len({*epoch}) == len(epoch)
        return []

    def check_stats(
        self, part: Part, clips: list[list[Clip]], batches: list[list[Any]], streams: list[Any]
    ) -> None:
        case = case_of({**self.common.options, "batch_size": part.options["batch_size"]})
        for stream, rank in zip(streams, batches, strict=True):
            stats = stream.stats()
            assert stats["batches"] == len(rank)
            assert stats["clips"] == sum(len(batch["episode"]) for batch in rank)
            for batch in rank[:-1] if case.draws_lengths else rank:
                assert len(batch["episode"]) == case.full_size(batch)
            stream.set_epoch(part.epoch)
            assert len(stream) == len(rank)


class TableMixMachine(MixMachine):
    """A mix of sources with a table each, or with a drawn `clip_len`."""

    @initialize(
        case=table_cases(kinds=("starts", "episodes", "frames", "anchors", "lengths")),
        ranks=st.integers(1, MOST_RANKS),
        end=st.sampled_from(["first_exhausted", "all_exhausted", 5]),
        weights=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    )
    def job(self, case: Case, ranks: int, end: str | int, weights: tuple[int, int]) -> None:
        assert isinstance(case, TableCase)
        kept = {
            "clip_len",
            "dilation",
            "windows",
            "pad",
            "features",
            "metadata",
            "ragged",
            "stride",
        }
        common = {n: value for n, value in case.options.items() if n in kept}
        names = ("turning", "one_per_episode")  # sources have one table in all epochs
        samples: list[Any] = [one for one in case.functions if one.name not in names]
        if case.table is not None:
            samples.insert(0, {n: value for n, value in case.table.items() if n != "repeat"})
        if case.lists_frames:
            common["ragged"] = "pad"
        if samples:
            common["samples"] = samples
        size = case.options["batch_size"]
        # A mix takes a `Budget` where frames have one shape in all sources.
        if case.lists_frames or "imu" in case.features or not isinstance(size, Budget):
            size = max(size, 3) if isinstance(size, int) else 3
        elif isinstance(end, int):
            end = "first_exhausted"
        common = {n: value for n, value in common.items() if n != "episodes"}
        self.begin(common, size, case.options["seed"], ranks, end, weights)
