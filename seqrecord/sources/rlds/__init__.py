"""RLDS datasets of TensorFlow Datasets."""
