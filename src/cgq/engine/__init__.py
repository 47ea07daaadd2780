"""One step: a direction, a search along it, a move, a record; one rollback if it fails."""
