"""Storages: local disks, mounts, object stores, fsspec filesystems; retries and a local cache."""
