"""Batches that a worker process fills and its consumer reads in place, without a copy between.

`multiprocessing` sends a tensor by copying it into shared memory that is new each time, whose
pages must all be found and cleared first: for large batches that takes many times as long as
filling them. Here the memory is shared from the beginning, and comes back to be filled again.
"""

from seqrecord.engine.shared_memory.pool import SharedBufferPool, can_share

__all__ = ["SharedBufferPool", "can_share"]
