"""Source for MCAP files and rosbag2 folders."""
