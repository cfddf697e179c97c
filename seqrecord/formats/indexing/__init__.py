"""Indexes of originals, to read them in place."""
