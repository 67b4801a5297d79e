"""Plans in other processes: by executors, by Dask, with a target that dies."""

import concurrent.futures
import importlib.util
import multiprocessing
import os
import pickle
import subprocess
import sys

import bpfof
import pyarrow.compute as pc
import pytest
from conftest import REPOSITORY
from distributed import Client, LocalCluster, wait
from worlds import same

PART_BYTES = 64 << 10


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"docs/examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spread(disks, trips, monkeypatch) -> list[str]:
    """The trips, once on each disk, whose targets the environment tells."""
    contents = trips.read_bytes()
    files = []
    for disk in disks:
        path = disk.mount / "trips.csv"
        with path.open("wb") as file:
            file.write(contents)
            os.fsync(file.fileno())
        files.append(str(path))
    monkeypatch.setenv("BPFOF_TARGETS", ";".join(disk.of_mount for disk in disks))
    return files


def test_dask_when_a_target_dies(disks, trips, monkeypatch):
    dask_query = example("dask_query")
    files = spread(disks, trips, monkeypatch)
    plan = dask_query.plan_of(files)
    local = bpfof.dataset(files, here=True).filter(pc.field("seconds") > 600)
    expected = local.group_by("zone").aggregate([([], "count_all"), ("fare", "sum"), ("fare", "mean")])
    parts = plan.parts(PART_BYTES)
    first, behind = parts[::2], parts[1::2]
    assert {part.path for part in behind} == set(files)
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None, processes=True) as cluster,
        Client(cluster) as client,
    ):
        whole = dask_query.ask(client, plan, parts)
        assert same(plan.finish(whole), expected)
        assert whole.lost == [] and whole.stats["chains"] == whole.stats["chains_at_target"]

        # Half of the parts have begun when one of the four dies.
        begun = client.map(plan.run, first, retries=2, pure=False)
        wait(begun, return_when="FIRST_COMPLETED")
        disks[2].kill()
        results = client.gather(begun + client.map(plan.run, behind, retries=2, pure=False))
    results.sort(key=lambda result: parts.index(result.costs[0]["part"]))
    result = plan.merge(results)
    assert same(plan.finish(result), expected)
    assert result.lost, "the result reports no lost part"
    assert all(one.startswith(files[2]) and "here" in one for one in result.lost), result.lost
    elsewhere = [cost for cost in result.costs if cost["part"].path != files[2]]
    assert all(cost["chains"] == cost["chains_at_target"] > 0 for cost in elsewhere)


def test_the_example_of_dask(disk, trips):
    path = disk.mount / "example.csv"
    path.write_bytes(trips.read_bytes())
    command = [sys.executable, str(REPOSITORY / "docs/examples/dask_query.py"), str(path)]
    environment = {**os.environ, "BPFOF_TARGETS": disk.of_mount}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "20000 rows; " in ran.stdout and "lost" not in ran.stdout
    path.unlink()


def test_processes(trips):
    data = bpfof.dataset(trips, here=True).filter(pc.field("fare") > 50)
    plan = data.group_by(["vendor"]).plan([("fare", "sum"), ("seconds", "max")])
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as executor:
        results = list(executor.map(plan.run, plan.parts(PART_BYTES)))
    assert len(results) > 4
    expected = data.group_by(["vendor"]).aggregate([("fare", "sum"), ("seconds", "max")])
    assert same(plan.finish(plan.merge(results)), expected)
    tree = plan.merge([plan.merge(results[:3]), plan.merge(results[3:])])
    assert same(plan.finish(tree), expected) and tree.stats["rows"] == 20_000


def test_threads_and_rows(trips):
    data = bpfof.dataset(trips, here=True).filter(pc.field("fare") > 99)
    plan = data.plan(["id", "fare"])
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        results = list(executor.map(plan.run, plan.parts(PART_BYTES)))
    assert same(plan.finish(plan.merge(results)), data.to_table(["id", "fare"]))


def test_a_target_that_is_needed(disk, trips):
    data = bpfof.dataset(trips, here=False, fallback=False)
    with pytest.raises(bpfof.TargetError, match="no target") as raised:
        data.count_rows()
    assert raised.value.path == str(trips)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (type(copy), str(copy), copy.path) == (bpfof.TargetError, str(raised.value), str(trips))


def test_each_dataset_tells_of_its_own_places(disks, trips, monkeypatch):
    data = [bpfof.dataset(path) for path in spread(disks[:2], trips, monkeypatch)]
    for one, disk in zip(data, disks):
        assert one.count_rows() == 20_000
        [place] = one.last_stats["places"]
        assert disk.url in place and one.last_stats["lost"] == []


def test_chains_without_a_map_are_lost(disk, trips):
    # The file is not on the target's namespace.
    data = bpfof.dataset(trips, **disk.how)
    for count in (data.count_rows, lambda: data.to_table(["id"]).num_rows):
        assert count() == 20_000
        stats = data.last_stats
        [lost] = stats["lost"]
        assert disk.url in lost and f"{stats['chains']} of {stats['chains']} chains ran here" in lost, lost


def test_a_target_that_comes_back(disks, trips):
    path = disks[0].mount / "trips.csv"
    path.write_bytes(trips.read_bytes())
    data = bpfof.dataset(path, **disks[0].how)
    assert data.count_rows() == 20_000 and data.last_stats["lost"] == []
    disks[0].kill()
    assert data.count_rows() == 20_000
    assert disks[0].url in data.last_stats["lost"][0]
    strict = bpfof.dataset(path, fallback=False, **disks[0].how)
    with pytest.raises(bpfof.TargetError):
        strict.count_rows()
    disks[0].start(disks[0].listening)
    assert strict.count_rows() == 20_000
    assert strict.last_stats["lost"] == [] and strict.last_stats["chains_at_target"] > 0


def test_bytes_from_elsewhere(trips):
    data = bpfof.dataset(trips, here=True)
    plan = data.group_by("zone").plan([("fare", "sum")])
    result = plan.run(plan.parts()[0])
    other = data.group_by("vendor").plan([("fare", "sum")])
    with pytest.raises(bpfof.QuestionError, match="not a partial result of this plan"):
        other.finish(result)
    for at in range(0, len(result.partial), 97):
        for changed in (0, 255):
            damaged = bytearray(result.partial[: at + 500])
            damaged[at] = changed
            try:
                plan.finish(plan.merge([bpfof.Result(bytes(damaged)), result]))
            except bpfof.Error:
                pass
    with pytest.raises(bpfof.QuestionError):
        bpfof._bpfof.Plan.from_bytes(plan._plan.to_bytes()[:-1])
    with pytest.raises(bpfof.QuestionError):
        bpfof._bpfof.Source.from_bytes(b"\xff" * 100)
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.parts() == plan.parts() and same(copy.finish(result), plan.finish(result))
