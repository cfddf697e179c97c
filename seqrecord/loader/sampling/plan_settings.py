"""The settings of an epoch's plan, and of its finished segments."""

from __future__ import annotations

from dataclasses import dataclass

from seqrecord.errors import ClipError
from seqrecord.loader.sampling.orders import find_order

LAST_BATCH = ("repeat", "drop", "keep")

WHOLE = 1 << 20
"""`PlanSettings.aligned` where all begins of shares align with units."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Settings of an epoch's plan; `settings_choice` chooses the last seven.

    Attributes:
        shuffle: shuffled order. Otherwise one cursor follows the canonical order.
        seed: seed of the order.
        batch_size: clips of a batch; `None` for single clips.
        last_batch: all shards have the same number of clips: some "repeat" their first, or "drop"
            clips that fill no batch. Or "keep" each clip in one shard.
        order: name of an `orders.Order`.
        num_cursors: number of cursors in a shard.
        block_rows: rows of a block, about; see `share_rounds`.
        aligned: how many of `WHOLE` begins of shares align with units, see `cursor_shares`.
        rotation: of the shards from turn to turn.
        group: the place of the feature group whose units begins align with.
        is_resident: whether all frames of a shard stay in memory: its clips are the same in every
            epoch, and each epoch after the first is a permutation of them.
        is_permuted: whether each epoch is a permutation of its rows.
    """

    shuffle: bool = True
    seed: int = 0
    batch_size: int | None = None
    last_batch: str = "repeat"
    order: str = "clips"
    num_cursors: int = 1
    block_rows: int = 32
    aligned: int = WHOLE
    rotation: int = 0
    group: int = 0
    is_resident: bool = False
    is_permuted: bool = False

    def __post_init__(self) -> None:
        find_order(self.order)
        if self.last_batch not in LAST_BATCH:
            raise ClipError("there is no such last_batch", expected=LAST_BATCH, got=self.last_batch)
        for name in ("batch_size", "num_cursors", "block_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ClipError(f"{name} is too small", expected="at least 1", got=value)

    @property
    def drops(self) -> bool:
        """Whether clips that fill no batch are dropped."""
        return self.last_batch == "drop"

    @property
    def keeps_frames(self) -> bool:
        """Whether the order costs nothing twice only if frames stay in memory."""
        return self.is_resident or self.is_permuted


@dataclass(frozen=True)
class EpochSegment:
    """A finished segment of an epoch, see `elastic`: the workers of each rank have returned `batch`
    batches of `batch_size` items together, in turn.

    A rank without workers counts as one worker. `settings` are those of the plans, of each dataset.
    Batches of a mix had `clips` clips. In a pass over a dataset of a mix, the workers of each rank
    have returned so many `rows`.
    """

    ranks: int
    workers: int
    batch: int
    batch_size: int
    settings: tuple[PlanSettings, ...]
    rows: tuple[int, ...] = ()
    clips: int = 0


@dataclass(frozen=True)
class DatasetPass:
    """A pass over a dataset in a mix, in the order of one of the dataset's epochs, and its finished
    segments.
    """

    epoch: int
    segments: tuple[EpochSegment, ...] = ()


@dataclass(frozen=True)
class MixStart:
    """Where the datasets of a mix continue after other ranks or workers, or after a growth.

    Attributes:
        epoch: of the mix.
        number: of the epoch's segment.
        slots: that are left of the epoch on all ranks; `None`: all.
        passes: of each dataset, the passes to finish; then come those of the following epochs.
            Empty: from the dataset's first epoch on.
    """

    epoch: int = 0
    number: int = 0
    slots: int | None = None
    passes: tuple[tuple[DatasetPass, ...], ...] = ()
