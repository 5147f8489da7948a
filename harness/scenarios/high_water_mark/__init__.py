"""The accounts of the high-water mark: scenarios that are drawn, picture by picture, on the terminal or on a page."""
