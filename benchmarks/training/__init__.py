"""Comparison of trainings with commonly used loaders and with seqrecord."""
