"""Export of a trained model as a folder with weights, choices, code, and a script that rebuilds and scores it."""
