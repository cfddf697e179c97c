"""Clips: enumeration, windows of features, and transforms."""
