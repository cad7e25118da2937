"""Other engines: a script that makes each one's environment, and a runner that its own Python runs.

Runners import nothing of Octavo, so that a peer's environment needs nothing of Octavo's.
"""
