"""LeRobot's dataset and sampler, read by seqrecord; see docs/from-lerobot.md."""
