"""Loader timing: `bench` measures a loader."""
