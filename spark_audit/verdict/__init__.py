"""The verdict, its findings and their texts, and the checks across keys that use the results for single keys."""
