"""HTTP only: routes, and errors as problem documents. No business rule."""
