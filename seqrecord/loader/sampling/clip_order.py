"""The usual order: each clip by itself, shuffled or front to back."""

from __future__ import annotations

from seqrecord.loader.sampling.orders import Order


class ClipOrder(Order):
    """`order="clips"`."""

    name = "clips"


CLIPS = ClipOrder()
