"""The computation of one candidate as a graph with shapes, built without computing anything."""
