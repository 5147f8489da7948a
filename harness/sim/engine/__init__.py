"""Time, chance and order of a simulated run: clocks, the queue of events, random streams, and the trace."""
