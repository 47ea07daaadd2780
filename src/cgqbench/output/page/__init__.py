"""One self-contained HTML page: its template, its script, and what they are filled with."""
