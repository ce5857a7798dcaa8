"""What happens to rooms, leases and drains: pure tables, (state, event) -> (state, commands)."""
