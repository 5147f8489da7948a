"""Systems side by side: the conductor, its tables and plots."""
