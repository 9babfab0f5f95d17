"""Classes of the nodes of a graph."""
