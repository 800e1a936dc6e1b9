"""Pages and figures of the experiments."""
