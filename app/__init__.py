"""A flash sale that sells from one stock through several instances and never oversells, undersells or loses an order."""
