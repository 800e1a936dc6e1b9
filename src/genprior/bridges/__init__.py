"""Ways into other libraries. Each file needs its library only when it is imported itself."""
