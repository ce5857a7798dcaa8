"""Simulated ports and the tools that explore, fuzz and judge the rooms."""
