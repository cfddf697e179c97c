"""Indexes of originals that stay where they are, and opening whatever lies at a place."""
