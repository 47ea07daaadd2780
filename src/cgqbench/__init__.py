"""The experiments around cgq: data, networks, rivals, a runner, tables, figures and a report."""
