"""The verdict: findings, their texts, and the checks across keys that follow from the decisions of single keys."""
