"""What a run says at its end: tables, percentiles, how long writes stood still."""
