"""Accelerators: an arena in a device's memory, and batches that are moved there ahead of time."""
