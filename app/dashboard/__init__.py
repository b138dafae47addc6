"""The control room: instances report themselves, and obey an operator's commands. No sale depends on it."""
