"""The rules that every run must hold, and the coverage points that say whether they were put to the test."""
