"""What all readers of an Azure account have in common, whatever client they read with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

from seqrecord.ranges import ByteRange
from seqrecord.storage.azure.account import AzureAccount
from seqrecord.storage.base import check_buffers, check_path
from seqrecord.storage.requests import TIMEOUT_SECONDS, Request, merge

__all__ = ["AzureReader"]


class AzureReader(ABC):
    """A `RangeReader` of an Azure account. It takes its clients along to no other process.

    `shown` is the root as it may be shown, `timeout` the seconds in which nothing may come.
    """

    def __init__(
        self, account: AzureAccount, shown: str, *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self.account, self.shown, self.timeout = account, shown, timeout

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), timeout=self.timeout), (self.account, self.shown)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        check_buffers(ranges, buffers)
        check_path(path)
        requests = merge(ranges, buffers)
        if requests:
            self._read(path, requests)
        else:
            self.size(path)  # raises if it is not there

    @abstractmethod
    def size(self, path: str) -> int: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _read(self, path: str, requests: Sequence[Request]) -> None:
        """Fill the requests, at least one, of a path that is clean."""
