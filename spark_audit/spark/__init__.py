"""The Spark engine: the session, the scan of the files, the shuffle, and the decisions on executors."""
