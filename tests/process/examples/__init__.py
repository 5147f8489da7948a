"""Tests that run the programs of examples/ against real members, and let members and programs fail."""
