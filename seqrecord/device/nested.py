"""Tensors inside dicts, lists, tuples and dataclasses, as loaders give them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["find_tensors", "map_tensors"]


def map_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with each tensor changed.

    Looks into mappings, lists, tuples, named tuples and dataclasses, and makes them anew; all else
    stays what it is.
    """
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, Mapping):
        changed = {key: map_tensors(value, change) for key, value in item.items()}
        return changed if type(item) is dict else _like(item, changed)
    if isinstance(item, tuple):
        values = [map_tensors(value, change) for value in item]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)
    if type(item) is list:
        return [map_tensors(value, change) for value in item]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        made = copy.copy(item)
        for field in dataclasses.fields(item):
            # A frozen one does not let its fields be set.
            object.__setattr__(made, field.name, map_tensors(getattr(item, field.name), change))
        return made
    return item


def find_tensors(item: Any) -> list[torch.Tensor]:
    """All tensors that `map_tensors` would change."""
    found: list[torch.Tensor] = []

    def add(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(item, add)
    return found


def _like(item: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """The values in a mapping of the item's kind: a copy knows what else it has, as a default."""
    try:
        made: Any = copy.copy(item)
        for key, value in values.items():
            made[key] = value
    except (TypeError, ValueError):  # it cannot be changed
        return values
    return made  # type: ignore[no-any-return]
