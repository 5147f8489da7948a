"""Every order of events in a small world: the production core, exhaustively (docs/internals/testing.md, "Exhaustive
mode").
"""
