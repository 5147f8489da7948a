"""Arguments that a call does not take, in each world."""
