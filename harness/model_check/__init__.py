"""Every order of events in a small world: the production core, exhaustively (docs/testing.md, "Exhaustive mode")."""
