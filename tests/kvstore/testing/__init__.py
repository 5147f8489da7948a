"""Tests of `kvstore.testing`: the store in memory and the three members, with the client of each world."""
