"""Accelerators: arenas in device memory, and batches moved there ahead of time."""
