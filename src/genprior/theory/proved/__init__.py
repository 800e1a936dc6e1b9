"""What can be proved about a network from its weights: norms of layers, and from them the constants of the whole."""
