"""The endurance run: minutes of full load on a cluster, with a sample of measurements each second. Bounds on these
samples decide whether the run passes.
"""
