"""What stands between the network and the page: names, sizes, times, numbers, and messages that no browser would send."""
