"""The settings of an epoch: how its clips are walked."""

from __future__ import annotations

from dataclasses import dataclass

from seqrecord.errors import ClipError

__all__ = ["ORDERS", "PlanSettings"]

ORDERS = ("clips", "sequences")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How an epoch is walked; `memory.default_settings` chooses the last five.

    In a round each of `num_cursors` cursors advances by a block of about `block_frames` frames (see
    `blocks.BlockSizes`). They walk runs of about `run_frames` frames (`None`: as long as can be).
    A cursor's first block has about `first_block_frames` frames, and each of the next ones at most
    twice as many as the one before. The clips of a part are `num_shares` shares (`None`: one a
    cursor) that begin where chunks do; the cursors of a share begin anywhere in it, for what
    several of them need stays in memory. Without `shuffle` there is one cursor, no run is cut and
    clips come in canonical order.

    With `equal` all parts have equally many clips; without it every clip is in exactly one.
    `rotate_phase` says that the clip tables of other epochs have other phases (see
    `phases.Phases`).

    With the order "sequences" clips of an episode follow each other in a row of the batches, see
    `sequences`. There is a cursor for each row, and the other four numbers have no meaning.
    """

    shuffle: bool = True
    seed: int = 0
    batch_size: int | None = None
    drop_last: bool = False
    equal: bool = True
    rotate_phase: bool = False
    order: str = "clips"
    num_cursors: int = 32
    block_frames: int = 8
    run_frames: int | None = 512
    first_block_frames: int = 8
    num_shares: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ClipError("there is no such order", expected=ORDERS, got=self.order)
        names = ("batch_size", "num_cursors", "block_frames", "run_frames", "first_block_frames")
        for name in (*names, "num_shares"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ClipError(f"{name} is too small", expected="at least 1", got=value)

    @property
    def shares(self) -> int:
        """How many shares of the epoch a part has."""
        return min(self.num_shares or self.cursors, self.cursors)

    @property
    def cursors(self) -> int:
        """How many cursors walk a part: one where nothing is shuffled, but for sequences."""
        return self.num_cursors if self.shuffle or self.order == "sequences" else 1
