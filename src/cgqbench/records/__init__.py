"""What a run leaves behind: append-only files, written and read back."""
