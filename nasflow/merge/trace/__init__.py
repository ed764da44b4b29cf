"""The computation of one candidate as a graph with shapes, found without computing anything."""
