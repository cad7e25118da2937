"""Measurements of Octavo, alone and beside other engines. Nothing in `octavo` imports this."""
