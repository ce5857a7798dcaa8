"""Throughput, latency and rooms per second beside a floor without any protocol."""
