"""What breaks Highwatermark on purpose: simulator, model checker, scenarios, mutants, and runs of real processes."""
