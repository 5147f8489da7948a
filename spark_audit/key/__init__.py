"""One key: the decision, by search and by shorter ways, and a counterexample that a reader can follow."""
