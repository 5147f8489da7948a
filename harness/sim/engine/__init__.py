"""What time, chance and order are in a simulated run: clock, queue of events, random streams, trace."""
