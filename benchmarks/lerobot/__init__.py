"""Clips a second of LeRobot and of seqrecord from one LeRobot dataset."""
