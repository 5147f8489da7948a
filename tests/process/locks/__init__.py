"""Tests of lock holders that run as processes and are stopped, and the program that these processes run."""
