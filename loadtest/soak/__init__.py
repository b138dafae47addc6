"""`make soak`: an hour of sales beside faults, and whether anything grows that must not."""
