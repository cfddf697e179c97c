"""Folders of images, arrays and tables."""
