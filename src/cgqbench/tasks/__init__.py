"""What is trained: data, networks and losses, by name or from a file of the user's own."""
