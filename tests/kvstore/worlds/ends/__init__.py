"""What becomes of calls, watches, leases, locks, leaderships and consumers when something ends, in each world: the
client, a deadline, the scope of a task, the loop, or the process, which forks."""
