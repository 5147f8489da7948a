"""The engine that runs on Spark: session, scan, shuffle, and the same decisions on executors."""
