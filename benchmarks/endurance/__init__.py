"""Minutes of full load, and what is judged about them."""
