"""The verdict: findings, their words, and the checks across keys that follow from the decisions of single keys."""
