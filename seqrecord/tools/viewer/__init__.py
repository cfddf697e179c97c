"""Pages of datasets, plots of clips with matplotlib, and episodes in the Rerun viewer."""
