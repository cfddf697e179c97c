"""Orders of epochs by name, for the argument `order` of loaders.

An order determines which rows come when, and its consequences for arguments, batches, draws and
states. The loader asks the order; no other module knows one by its name::

    class Order                 properties, as integers, flags and texts; columns of batches
    clip_order, sequences       the built-in ones
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.loader.rules import Rule
from seqrecord.loader.sampling.cursor_shares import Pieces
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.store import areas


class Order:
    """The properties of an order. An instance has no state.

    The defaults suit an order in which each clip stands for itself.

    Attributes:
        name: the value of the argument, also in saved states.
        rules: combinations of arguments that are refused.
        columns: extra columns of batches, see `batch_columns`.
        is_mixed: with `shuffle`, clips are mixed from many places: memory determines the cursors
            and blocks, within `num_cursors` and `shuffle_buffer`.
        has_rows: each row of a batch is a cursor that follows episodes, by one clip per batch, also
            without `shuffle`.
        keeps_shards: shards may have the same clips in every epoch, while their frames stay in
            memory.
        has_copies: a clip may come several times in an epoch.
        is_for_mixes: a source of a mix may have it.
        shares_draws: the clips in a row of the clip table share random draws.
    """

    name: ClassVar[str]
    rules: ClassVar[tuple[Rule[Any], ...]] = ()
    columns: ClassVar[tuple[str, ...]] = ()
    is_mixed: ClassVar[bool] = True
    has_rows: ClassVar[bool] = False
    keeps_shards: ClassVar[bool] = True
    has_copies: ClassVar[bool] = True
    is_for_mixes: ClassVar[bool] = True
    shares_draws: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return find_order, (self.name,)

    def stride(self, length: int, dilation: int) -> int:  # noqa: ARG002
        """The default of `stride`, for clips of `length` frames."""
        return 1

    def batch_columns(
        self,
        table: RowTable,  # noqa: ARG002
        pieces: Pieces,  # noqa: ARG002
        number: IntArray,  # noqa: ARG002
        *,
        is_end: bool,  # noqa: ARG002
    ) -> Mapping[str, npt.NDArray[np.bool_]]:
        """The extra columns of a batch, bool[n] each.

        Args:
            table: the rows of the epoch.
            pieces: of the shard.
            number: of the batch's rows in all pieces, int64[n].
            is_end: whether rows after it are dropped.
        """
        return {}

    def counts(self, table: RowTable, pieces: Pieces, num_batches: int) -> Mapping[str, int]:  # noqa: ARG002
        """Further statistics of a shard, of which each cursor has at most `num_batches` rows."""
        return {}

    def frames_left_out(self, table: ClipTable, num_frames: IntArray) -> int | None:  # noqa: ARG002
        """The number of frames in no clip, for statistics; `None` if it is not counted.

        `num_frames`, int64, has the length of every episode.
        """
        return None

    def describe(self, table: ClipTable) -> str:  # noqa: ARG002
        """Text about the clips of an epoch for the loader's own, such as "; 3 sequences"."""
        return ""


ORDERS: dict[str, Order | str] = {**areas.ORDERS}
"""Orders by name, or their entry points until the first use: few epochs have sequences.

Another order is registered by adding it.
"""


def find_order(name: str) -> Order:
    """The order of a name. Raises `ClipError` for another name."""
    order = ORDERS.get(name)
    if order is None:
        raise ClipError("there is no such order", expected=(*ORDERS,), got=name)
    if isinstance(order, str):
        order = ORDERS[name] = areas.load_entry(order)
    return order
