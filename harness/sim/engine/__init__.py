"""Time, randomness and order of a simulated run: clocks, the event queue, random streams, and the trace."""
