"""Source for HDF5 files of ALOHA, robomimic and DROID."""
