"""One behaviour on three event loops: each scenario runs with the client of trio, of asyncio, and of threads."""
