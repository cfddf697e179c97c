"""Conversion: an original's episodes into record files, on processes and clusters."""
