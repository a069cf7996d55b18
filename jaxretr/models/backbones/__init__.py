"""The towers' networks and their layers."""
