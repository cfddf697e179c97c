"""Statistics of features: count, mean, deviation, extremes and quantiles."""

from seqrecord.store.statistics.by_feature import FeatureStatistics, Statistics

__all__ = ["FeatureStatistics", "Statistics"]
