"""Statistics of features: count, mean, deviation, extremes and quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.store.statistics.by_feature import FeatureStatistics as FeatureStatistics
    from seqrecord.store.statistics.by_feature import Statistics as Statistics

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
