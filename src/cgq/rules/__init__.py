"""The method's formulas: numbers in, numbers out."""
