"""The rules that must hold in every run, and the coverage points that show whether runs really tested the rules."""
