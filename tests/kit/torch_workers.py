"""Simulates a DataLoader worker for code that asks torch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.utils.data._utils import worker as torch_worker

__all__ = ["be_worker"]


def be_worker(monkeypatch: pytest.MonkeyPatch, number: int, count: int) -> None:
    """Let `torch.utils.data.get_worker_info` return worker `number` of `count`."""
    info = SimpleNamespace(id=number, num_workers=count)
    monkeypatch.setattr(torch_worker, "_worker_info", info)
