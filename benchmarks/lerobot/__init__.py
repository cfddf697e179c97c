"""Clips per second of LeRobot and seqrecord on the same LeRobot dataset."""
