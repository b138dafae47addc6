"""A flash sale: one stock, several instances, nothing oversold, nothing undersold, no order lost."""
