"""LeRobot imports it; what it needs of it is for augmentation."""
