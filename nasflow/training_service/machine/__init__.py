"""What is known of the machine this runs on: its processes, memory and GPUs. Imports no other room."""
