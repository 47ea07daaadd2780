"""All parameters as one vector: where they lie, inner products, the line through them."""
