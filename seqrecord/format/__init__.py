"""Bytes of datasets, both ways: pages, rows, header and footer, index, manifest; docs/format.md."""
