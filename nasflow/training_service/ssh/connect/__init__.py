"""One connection to one host: its route, the login, and what can go wrong. Imports no other room."""
