"""The rules that must hold in every run, and the coverage points that show whether the rules were put to the test."""
