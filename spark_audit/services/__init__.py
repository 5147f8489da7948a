"""The properties of watches, leases, locks and reads at a revision, judged apart from the order of operations."""
