#!/usr/bin/env python3
"""Queries files on several targets with Dask: dask_query.py FILE…

The files are CSV as written by trips.py. BPFOF_TARGETS names the target of each mount, if the kernel does not."""

import sys

import bpfof
import pyarrow.compute as pc
from distributed import Client, LocalCluster


def plan_of(files):
    """Fares by zone."""
    long = bpfof.dataset(files).filter(pc.field("seconds") > 600)
    return long.group_by("zone").plan([([], "count_all"), ("fare", "sum"), ("fare", "mean")])


def ask(client, plan, parts):
    """Runs each part on a worker, repeats it if it fails, and merges the results."""
    results = client.map(plan.run, parts, retries=2, pure=False)
    while len(results) > 1:
        # In the order of the parts, 16 at a time.
        results = [client.submit(plan.merge, results[at : at + 16]) for at in range(0, len(results), 16)]
    return results[0].result()


if __name__ == "__main__":
    plan = plan_of(sys.argv[1:])
    with LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        result = ask(client, plan, plan.parts())
    print(plan.finish(result).to_pandas())
    print(result.stats["rows"], "rows;", result.stats["received_bytes"], "bytes received from targets")
    for lost in result.lost:
        print("lost:", lost)
