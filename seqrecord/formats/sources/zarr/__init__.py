"""Source for replay buffers in Zarr."""
