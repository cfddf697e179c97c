"""Originals: the protocol of sources, their inventories, and access to their files."""
