"""Source for RLDS datasets of TensorFlow Datasets."""
