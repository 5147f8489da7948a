"""What a member says of itself: status, health, metrics and the log."""
