"""The command `hwm`: one folder for each group of commands, and shared modules.

Commands that belong to no group are here: backups, checks of a data folder, and measurements.
"""
