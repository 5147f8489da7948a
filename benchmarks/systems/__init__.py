"""The compared systems: their servers, started as processes."""
