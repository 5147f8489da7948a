"""All keys together, ordered by revision: replay of the store, and what fits into the gaps."""
