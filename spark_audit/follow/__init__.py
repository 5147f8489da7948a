"""The audit of a growing history.

The package holds the files, the parts between two cuts, and the state that is kept between two runs.
"""
