"""Mixes of sources: weights, one batch of several sources."""
