"""Plots of clips and quality tables with matplotlib, and episodes in the Rerun viewer."""
