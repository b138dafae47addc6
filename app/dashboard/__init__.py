"""The control room: what instances tell of themselves, and what an operator has them do. No sale rests on it."""
