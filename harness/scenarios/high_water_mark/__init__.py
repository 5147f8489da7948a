"""The accounts of the high-water mark: plays that can be watched, picture by picture, on the terminal or on a page."""
