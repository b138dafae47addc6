"""`make soak`: an hour of sales beside faults, and a check that nothing grows that must not."""
