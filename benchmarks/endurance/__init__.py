"""The endurance run: minutes of full load on a cluster, a sample of the cluster each second, and a judgement of the
samples.
"""
