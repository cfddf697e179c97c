"""Imported by LeRobot, which uses it for augmentation only."""
