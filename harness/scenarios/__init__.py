"""Named scenarios: short plays of the protocol that a person can read, run on the production core (docs/testing.md)."""
