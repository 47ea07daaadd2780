"""The zoo's tables: every task, a line for each method, and how soon each is under way."""
