"""Replay buffers in Zarr."""
