"""From records to numbers: what may stand side by side, means, curves and costs."""
