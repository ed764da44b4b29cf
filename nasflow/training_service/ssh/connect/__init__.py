"""The connection to a host: its route, the login, and errors. Imports no other room."""
