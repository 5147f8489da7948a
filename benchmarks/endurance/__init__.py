"""Minutes of full load on a cluster, and the judgement of its samples."""
