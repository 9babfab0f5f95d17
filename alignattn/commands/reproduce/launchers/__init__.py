"""Where runs are run: each in a process of its own, on this machine or on a Ray cluster.

The `launch` of each takes the paths of prepared folders, on storage that every machine shares, and yields each with the
exit code of its worker as it ends, in any order.
"""
