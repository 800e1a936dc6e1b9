"""Protection of the page: host names, limits on sizes, times and connections, and forged messages."""
