"""From numbers to what is looked at: tables, figures and the page."""
