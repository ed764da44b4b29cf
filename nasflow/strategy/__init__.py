"""Which candidates to try: ask and tell."""
