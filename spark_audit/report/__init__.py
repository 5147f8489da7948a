"""The output of an audit: the verdict on a terminal, the HTML page with its plots, and the Parquet file of keys."""
