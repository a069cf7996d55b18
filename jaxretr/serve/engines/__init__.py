"""Indexes in databases, which the service searches as it does its own."""
