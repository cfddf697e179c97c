"""Video files, and video streams of other sources."""
