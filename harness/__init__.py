"""Tools that break Highwatermark on purpose: simulator, model checker, scenarios, mutants, runs of real processes."""
