"""What is measured of a machine and of processes, and the statistics of it."""
