"""The costs of samples under a budget: from frames, columns, or a function of columns."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
import torch

from seqrecord.errors import ClipError, located
from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.samples import Samples
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.pipes.columns import CU_SEQLENS, ClipColumn
from seqrecord.loader.pipes.option_values import Budget
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.clip_costs import ClipCosts
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.orders import find_order
from seqrecord.loader.sampling.sample_functions import BuiltIn, SampleRandom
from seqrecord.store.text import counted, repr_of, shown_place
from seqrecord.store.units import MAX_INT, raise_if

_MOST_COST = 1 << 31
_ROWS_PER_MEAN = 4  # the most clips of a batch, where costs do not bound its frames

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True, eq=False)
class SampleCosts:
    """The costs of a view's samples under a budget. Picklable, unless the function of costs is not.

    Costs of epoch 0 and of the last epoch are kept.

    Attributes:
        view: the samples.
        budget: the argument.
        lengths: the number of frames of each row of lists that differ in length, int64[rows], or of
            any clip: of its longest window.
        pads: whether a clip costs as much as the greatest in its batch.
        form: see `ClipCosts`.
        dropped: how many rows were too large in an epoch, if these are dropped.
    """

    view: View
    budget: Budget
    lengths: IntArray | int
    pads: bool
    form: str
    dropped: dict[int, int] = field(default_factory=dict, repr=False)
    _made: dict[int, ClipCosts] = field(default_factory=dict, repr=False)
    _logged: set[int] = field(default_factory=set, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": {}}

    @classmethod
    def of(cls, view: View, options: LoaderOptions) -> SampleCosts | None:
        """The costs of a request; `None` without a budget, or if frames are drawn per batch."""
        budget, lists = options.budget, view.lists
        if budget is None or options.clip_lens is not None:
            return None
        lengths: IntArray | int = max(view.clip_frames.lengths.values(), default=1)
        form, pads = "stacked", options.pads_values
        if lists is not None:
            lengths = lists.length if lists.length_of is None else lists.length_of
            if lists.length_of is not None:
                pads = options.ragged == "pad"  # a dict has forms of frames, not of lists of them
                if view.draws.functions is None:
                    form = "padded" if pads else "packed"
        pads = pads if budget.padded is None else budget.padded
        costs = cls(view, budget, lengths, pads, form)
        if budget.too_large != "alone" and (costs.constant or 0) > budget.size:
            raise ClipError(
                "every clip costs more than the budget of a batch",
                expected=f"at most {budget.size}; too_large='alone', or a larger budget",
                got=f"{costs.constant} frames",
            )
        return costs

    @property
    def constant(self) -> int | None:
        """The cost of every clip, if it is one number of frames."""
        is_constant = self.budget.cost == "frames" and isinstance(self.lengths, int)
        return int(self.lengths) if is_constant else None

    def values(self, samples: Samples) -> tuple[IntArray, IntArray]:
        """The cost and the frames of each table row, int64[n] each.

        Raises `ClipError` for costs that are no integers of at least 1.
        """
        row = samples.keys.row
        frames = self.lengths if isinstance(self.lengths, int) else self.lengths[row]
        frames = np.broadcast_to(np.asarray(frames, np.int64), len(row))
        cost, name = self.budget.cost, repr_of(self.budget.cost, 50)
        if cost == "frames":
            return frames, frames
        columns = _Columns(samples, frames)
        costs: Any = columns[cost] if isinstance(cost, str) else cost(columns)
        expected = f"{len(row)} integers from 1 to {_MOST_COST - 1}"
        problem = f"the costs of a Budget are not numbers: {name}"
        try:
            values: Any = np.asarray(costs)
        except ValueError as error:  # lists of several lengths
            raise ClipError(problem, expected=expected, got=f"ValueError: {error}") from error
        if values.dtype.kind not in "iuf":
            raise ClipError(problem, expected=expected, got=f"{values.dtype} {[*values.shape]}")
        if values.shape != (len(row),):
            raise ClipError(
                f"the costs of a Budget are not one number for each row: {name}",
                expected=f"shape [{len(row)}], for {counted(len(row), 'row')}",
                got=f"shape {[*values.shape]}",
            )
        wrong = ~((values >= 1) & (values < _MOST_COST) & (values % 1 == 0))
        for place in np.flatnonzero(wrong)[:1].tolist():
            problem = f"a cost of a Budget is no integer of at least 1, {_place(samples, place)}"
            raise ClipError(problem, expected=expected, got=values[place].item())
        return values.astype(np.int64), frames

    def in_epoch(self, epoch: int) -> ClipCosts:
        """The costs of an epoch's samples. Raises `ClipError` for one above the budget."""
        epoch = epoch if self.view.samples.common.are_random else 0
        if epoch not in self._made:
            max_rows = self.in_epoch(0).max_rows if epoch else None
            for other in self._made.keys() - {0}:
                del self._made[other]
            with located(ClipError, file=self.view.dataset.url):
                samples = self.view.samples.in_epoch(epoch).samples
                self._made[epoch] = self._of_samples(samples, max_rows)
        return self._made[epoch]

    def describe(self) -> dict[str, Any]:
        """The arguments that determine batches, as JSON; of a function, a hash of its values."""
        cost = self.budget.cost
        if not isinstance(cost, str):
            values = self.values(self.view.samples.in_epoch(0).samples)[0].astype("<i8")
            cost = f"function {hashlib.sha256(values.tobytes()).hexdigest()[:16]}"
        return {**asdict(self.budget), "cost": cost, "padded": self.pads}

    def log(self, plan: EpochPlan) -> None:
        """Log the expected fill and padding of batches, once for each number of shards."""
        costs, count = plan.costs, plan.shard.count
        if plan.shard.index or count in self._logged:
            return
        if costs is None or (use := plan.budget_use) is None:
            return
        self._logged.add(count)
        _logger.info(
            "%s: %s batches of a budget of %d: %d in %s, %.0f %% used, %.0f %% padding",
            shown_place(self.view.dataset.url),
            *("padded" if costs.pads else "packed", costs.budget, plan.num_batches),
            "all" if count == 1 else f"each of {count} shards",
            *(100 * use.used, 100 * use.padding),
        )

    def _of_samples(self, samples: Samples, max_rows: int | None) -> ClipCosts:
        """The costs of an epoch's table; `max_rows` is that of epoch 0."""
        budget, (cost, frames) = self.budget, self.values(samples)
        for place in np.flatnonzero(cost > budget.size)[:1].tolist():
            if budget.too_large == "error":
                raise ClipError(
                    f"a sample costs more than the budget of a batch, {_place(samples, place)}",
                    expected=f"at most {budget.size}; too_large='alone' or 'drop', or a larger "
                    "budget",
                    got=int(cost[place]),
                )
        cost, row = np.minimum(cost, budget.size), samples.keys.row
        mean = budget.size / max(1.0, float(cost.mean()) if len(cost) else 1.0)
        is_of_frames = budget.cost == "frames" and self.form != "stacked"
        max_rows = max_rows or budget.max_rows
        if max_rows is None:
            max_rows = MAX_INT if is_of_frames else max(1, round(_ROWS_PER_MEAN * mean))
        most_rows = min(max_rows, budget.size // int(cost.min(initial=budget.size)))
        longest = int(frames.max(initial=1))
        most_frames = max(longest, budget.size if is_of_frames else most_rows * longest)
        if self.form == "packed" and not is_of_frames and len(cost):  # most frames for their cost
            ratio = float((frames / cost).max())
            most_frames = max(longest, min(most_frames, ceil(budget.size * ratio)))
        sizes = max(1, min(round(mean), max_rows)), most_rows, most_frames
        return ClipCosts(
            budget.size,
            self.pads,
            max_rows,
            _by_row(row, cost),
            _by_row(row, frames),
            self.form,
            *sizes,
        )

    def count_too_large(self, epoch: int) -> dict[str, int]:
        """How many samples of an epoch cost more than the budget, for statistics."""
        samples, count = self.view.samples.in_epoch(epoch).samples, 0
        if self.budget.too_large == "drop":
            count = self.dropped.get(epoch, 0)
        elif self.budget.too_large == "alone":
            count = int((self.values(samples)[0] > self.budget.size).sum())
        return {"clips_too_large": count}

    def check_names(self) -> None:
        """Raise `ClipError` if another entry of a packed batch is called `cu_seqlens`."""
        view = self.view
        names = {*view.batch_arrays, *view.metadata, *view.samples.in_epoch(0).samples.own}
        is_wrong = self.form == "packed" and CU_SEQLENS in names
        problem = f"packed batches have the column {CU_SEQLENS}, and so has the dataset or samples"
        raise_if(is_wrong, problem, f"another name; or rename={{{CU_SEQLENS!r}: …}}", CU_SEQLENS)

    def with_drop(self, view: View) -> View:
        """The view without rows that cost more than the budget, if these are dropped."""
        if self.budget.too_large != "drop":
            return view
        arguments = {"size": self.budget.size, "cost": self.budget.cost}
        function = BuiltIn("fitting", arguments, self._fitting, reads_columns=True)
        functions = (*view.samples.functions, function)
        return replace(view, samples=replace(view.samples, functions=functions))

    def _fitting(
        self, samples: Samples, epoch: int, _rng: SampleRandom, **_arguments: Any
    ) -> Samples:
        fits = self.values(samples)[0] <= self.budget.size
        self.dropped[epoch] = int((~fits).sum())
        return samples if fits.all() else samples.filter(fits)


def with_budget(view: View, options: LoaderOptions) -> tuple[View, int | None, SampleCosts | None]:
    """The view without samples that a budget drops, the usual clips of a batch, and the costs of
    samples if clips differ in cost.

    Raises `ClipError` for costs that are not possible.
    """
    costs = SampleCosts.of(view, options)
    if costs is None:
        return view, options.most_clips, None
    if costs.constant is not None:
        return view, costs.budget.rows(costs.constant), None
    problem = f"rows of order={options.order!r} are of one cost each, and a budget is of samples"
    is_wrong = find_order(options.order).has_rows
    raise_if(is_wrong, problem, "a number of rows as batch_size, or another order")
    view = costs.with_drop(view)
    costs = replace(costs, view=view)
    costs.check_names()
    view.samples.clips_in(0)  # the budget may drop all
    return view, costs.in_epoch(0).mean_rows, costs


def fit_columns(
    columns: dict[str, Any],
    origin: Sequence[ClipColumn],
    costs: ClipCosts | None,
    clips: ClipKeys,
) -> dict[str, Any]:
    """Cut columns of frames to the longest list of a batch, and add `cu_seqlens`.

    Of `origin`, these have a value for each listed frame, also those of cameras.
    """
    if costs is None or costs.form == "stacked":
        return columns
    lengths = torch.from_numpy(costs.lengths(clips.sample))
    longest = int(lengths.max())
    per_frame = (column.name for column in origin if column.per_frame)
    fitted = {name: columns[name][:, :longest] for name in per_frame if name in columns}
    if costs.form == "packed":
        ends = lengths.cumsum(0, dtype=torch.int32)
        fitted[CU_SEQLENS] = torch.cat((ends.new_zeros(1), ends))
    return columns | fitted


@dataclass(frozen=True, eq=False)
class _Columns(Mapping[str, Any]):
    """Columns of a table and `frames`, for functions of costs; an unknown name is a `ClipError`."""

    samples: Samples
    frames: IntArray

    def __iter__(self) -> Iterator[str]:
        return iter(("frames", *self.samples.names))

    def __len__(self) -> int:
        return 1 + len(self.samples.names)

    def __contains__(self, name: object) -> bool:
        return name in (*self,)

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a column, or `default` without it."""
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def __getitem__(self, name: str) -> Any:
        if name == "frames":
            return self.frames
        is_wrong = name not in self
        raise_if(is_wrong, "a Budget refers to no column of samples", " or ".join(self), name)
        return self.samples[name]


def _place(samples: Samples, place: int) -> str:
    """The row of a table, and its episode and start, for messages."""
    part = samples.take(np.array([place]))
    row = int(part.rows_in_table(part.keys)[0])
    return f"in row {row}: episode {part['episode'][0]!r}, start {int(part['start'][0])}"


def _by_row(row: IntArray, values: IntArray) -> IntArray:
    """Values of rows, int64[n] each, by the row's number; 1 for rows that are not there."""
    by_row = np.ones(int(row[-1]) + 1 if len(row) else 0, np.int64)
    by_row[row] = values
    return by_row
