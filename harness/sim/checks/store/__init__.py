"""Rules of feature level 2: history, watches, leases and locks, judged by a second implementation of the store."""
