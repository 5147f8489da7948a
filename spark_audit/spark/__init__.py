"""The engine on Spark: session, scan, shuffle, and the same decisions on executors."""
