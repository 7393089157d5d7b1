"""Decompositions, by family of operators."""
