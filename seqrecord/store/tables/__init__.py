"""Integers of frames: chunk grids of episodes, and the frames that rows of users' tables name."""
