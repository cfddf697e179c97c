"""Source for LeRobot datasets, v2.0 to v3.0."""
