"""Statistics of features: count, mean, deviation, extremes and quantiles."""
