"""Finds dead searches and resumes them."""
