"""Changes to existing datasets: episodes, features, splits, merging, unused bytes."""
