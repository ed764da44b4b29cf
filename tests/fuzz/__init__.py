"""Random damage to all that comes from outside: files, reports and lines; each is read or refused in a sentence."""
