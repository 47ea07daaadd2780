"""From a cell to its record: batches, passes, epochs, and the machines they run on."""
