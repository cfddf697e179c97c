"""Shared by several sources: files, images, tables, timestamps."""
