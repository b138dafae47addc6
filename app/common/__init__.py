"""What locks and stock both stand on."""
