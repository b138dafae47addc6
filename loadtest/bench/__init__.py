"""`make bench`: what a sale under a lock costs beside an endpoint that does nothing. See docs/performance.md."""
