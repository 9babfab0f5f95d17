"""Launchers, which execute each run in its own process, on this machine or on a Ray cluster.

`launch` accepts the paths of prepared folders, on storage that all machines share, and yields each with the exit code
of its worker as it ends, in any order.
"""
