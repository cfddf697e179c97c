"""Indexes of originals read in place; opening of datasets and originals."""
