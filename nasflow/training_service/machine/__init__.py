"""Processes, memory and GPUs of the machine this runs on. Imports no other room."""
