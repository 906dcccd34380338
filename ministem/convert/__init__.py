"""Weights to and from other code."""
