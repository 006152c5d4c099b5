"""Models of which some layers have no experts: a cluster is complete without them, and whoever asks
for an expert of such a layer is told that there is none."""
import json
import struct
from pathlib import Path

import grpc
import numpy as np
import pytest

import sy_client
from sy_client import WAIT_S, channel, error_info, error_of, rows, wait_for
from sy_cluster import UpCluster, run_tool

CONFIGS = Path(__file__).parent.parent / "golden" / "families"
# (layers with experts, experts of a layer, a layer without)
MODELS = {"deepseek_v3": ([1, 2], 16, 0), "qwen2_moe": ([0, 2], 12, 1),
          "llama4_text": ([1, 3], 4, 2)}
RANGES = {"deepseek_v3": "1-2", "qwen2_moe": "0,2", "llama4_text": "1,3"}
HIDDEN = 64
pytestmark = pytest.mark.asan


def start(name, directory):
    run_tool("synth", "--config", CONFIGS / f"{name}.json", "--recipe", "vectors", "--out",
             directory / name)
    cluster = UpCluster(model=directory / name, experts=2, expert_arg="--linger-s=1")
    cluster.model_name = name
    return cluster


@pytest.fixture(params=list(MODELS))
def named(request, tmp_path, stubs):
    cluster = start(request.param, tmp_path)
    yield request.param, cluster
    cluster.close()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory, stubs):
    """Layer 1 of three has no experts. Tests must leave the placement as it was."""
    cluster = start("qwen2_moe", tmp_path_factory.mktemp("dense"))
    yield cluster
    cluster.close()


def tool(cluster, *args, **how):
    return run_tool(*args, "--dir", cluster.dir, **how)


def tool_json(cluster, *args, **how):
    return json.loads(tool(cluster, *args, "--json", **how))


def wait_held(cluster, node, layer, expert, state="resident"):
    wait_for(lambda: any((s["layer"], s["expert"], s["state"]) == (layer, expert, state)
                         for s in cluster.shards_of(node) or []),
             f"{layer}/{expert} {state} on {node}")


def value(cluster, field):
    with cluster.redis() as r:
        return r.hget(cluster.placement_key, field)


def test_a_cluster_is_ready_with_all_the_shards_that_there_are(named):
    name, cluster = named
    layers, n_experts, dense = MODELS[name]
    resident = [s for n in ("expert-0", "expert-1") for s in cluster.shards_of(n)]
    assert {(s["layer"], s["expert"]) for s in resident} == {
        (layer, e) for layer in layers for e in range(n_experts)}
    nodes = [p for p in cluster.status()["cluster"]["processes"] if p["tier"] == "expert"]
    assert [p["resident"] for p in nodes] == [len(layers) * n_experts // 2] * 2
    check = tool_json(cluster, "placement", "check")
    assert check["well"] and check["shards"]["resident"] == len(layers) * n_experts
    shown = tool_json(cluster, "placement", "show")
    assert shown["complete"] and shown["moe_layers"] == RANGES[name]
    assert shown["resolved"][dense] == [] and len(shown["resolved"][layers[0]]) == n_experts
    assert len(shown["fields"]) == len(layers) * n_experts
    for process in cluster.names():
        assert cluster.metric(process, "switchyard_placement_missing_experts") == 0
    with cluster.client() as client:
        assert client.model().moe_layers == RANGES[name]
        assert len(client.generate([1, 17, 42], max_tokens=3, ignore_eos=True).tokens) == 3
    load = cluster.json_of("aggregator-0", "/load")
    assert load["moe_layers"] == RANGES[name]
    for layer in range(load["layers"]):
        counted = sum(load["rows"][layer * n_experts:(layer + 1) * n_experts])
        assert (counted > 0) == (layer in layers)


def test_an_expert_moves_and_a_pattern_moves_those_that_exist(qwen):
    before = value(qwen, "2/4")
    here, there = ("expert-0", "expert-1") if "expert-0" in before else ("expert-1", "expert-0")
    tool(qwen, "placement", "move", "2/4", f"{here}/cpu:0", f"{there}/cpu:0", "--wait")
    wait_held(qwen, there, 2, 4)
    tool(qwen, "placement", "rollback", "--wait")
    wait_held(qwen, here, 2, 4)
    told = tool(qwen, "placement", "move", "*/3", "expert-0/cpu:0", "expert-1/cpu:0", "--wait")
    assert told.startswith("1 experts move") and value(qwen, "1/3") is None
    tool(qwen, "placement", "rollback", "--wait")


def test_an_edit_of_a_layer_without_experts_is_reported(qwen):
    done = tool(qwen, "placement", "set", "1/3", "expert-0/cpu:0", check=False)
    assert done.returncode == 1 and "layer 1 has no experts: those that have are 0,2" in done.stderr
    before = qwen.hash_of("aggregator-0")
    qwen.set_placement({"1/3": "expert-0/cpu:0", "1/*": "expert-1/cpu:0"})
    for process in qwen.names():
        wait_for(lambda p=process: qwen.metric(p, "switchyard_placement_refused_fields") == 2,
                 f"two refusals in {process}")
        assert qwen.hash_of(process) == before and qwen.ready(process)
    check = tool(qwen, "placement", "check", check=False)
    assert check.returncode == 3
    assert "refused: 1/3: 'expert-0/cpu:0': layer 1 has no experts" in check.stdout
    with qwen.redis() as r:
        r.hdel(qwen.placement_key, "1/3", "1/*")
    wait_for(lambda: not tool(qwen, "placement", "check", check=False).returncode, "all well again")


def test_a_star_wants_no_shard_of_a_layer_without_experts(qwen):
    fields = tool_json(qwen, "placement", "show")["fields"]
    before = qwen.hash_of("aggregator-0")
    with qwen.redis() as r, r.pipeline(transaction=True) as p:
        p.hset(qwen.placement_key, "*/*", "expert-0/cpu:0")
        p.hdel(qwen.placement_key, *fields)
        p.execute()
    qwen.wait_same_hash(*qwen.names(), other_than=before)
    for expert in range(12):
        wait_held(qwen, "expert-0", 2, expert)
    assert {s["layer"] for s in qwen.shards_of("expert-0")} == {0, 2}
    # Without a description of the cluster, who runs says which layers have experts.
    alone = ["--redis", f"unix:{qwen.redis_path}", "--model", qwen.model_name]
    assert json.loads(run_tool("placement", "check", *alone, "--json"))["well"]
    assert json.loads(run_tool("placement", "show", *alone, "--json"))["moe_layers"] == "0,2"
    qwen.set_placement(fields)
    with qwen.redis() as r:
        r.hdel(qwen.placement_key, "*/*")
    for process in qwen.names():
        wait_for(lambda p=process: qwen.hash_of(p) == before, f"the placement before in {process}")


def test_what_asks_for_experts_of_such_a_layer_is_refused(qwen):
    x = rows(np.ones((2, HIDDEN), np.float32))
    compute = sy_client.expert_pb.ComputeRequest(
        layer=1, hidden=x, expert=struct.pack("<H", 0), group_end=struct.pack("<I", 1),
        row=struct.pack("<I", 0))
    with qwen.client() as client, channel(qwen.address("router-0")) as router, \
            channel(qwen.address("expert-0")) as expert:
        calls = [(client.stub.Forward, sy_client.pb.ForwardRequest(layer=1, hidden=x)),
                 (sy_client.router_rpc.RouterStub(router).Route,
                  sy_client.router_pb.RouteRequest(layer=1, hidden=x)),
                 (sy_client.expert_rpc.ExpertStub(expert).Compute, compute)]
        for method, message in calls:
            error = error_of(method, message, timeout=WAIT_S)
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "layer: 1 has no experts" in error.details()
            info = error_info(error)
            assert (info.reason, info.metadata["layer"]) == ("LAYER_HAS_NO_EXPERTS", "1")
        told = sy_client.router_rpc.RouterStub(router).DescribeModel(
            sy_client.router_pb.DescribeModelRequest(), timeout=WAIT_S)
        assert told.moe_layers == "0,2"
        assert client.stub.Forward(sy_client.pb.ForwardRequest(layer=2, hidden=x),
                                   timeout=WAIT_S).output.rows == 2


def test_plan_balance_and_drain_pass_such_a_layer_by(qwen):
    before = qwen.hash_of("aggregator-0")
    plan = tool_json(qwen, "placement", "plan", "--set", "*/3", "expert-0/cpu:0")
    assert plan["experts"] == [] and plan["loads"] == 0
    refused = tool(qwen, "placement", "plan", "--set", "1/3", "expert-0/cpu:0", check=False)
    assert "layer 1 has no experts" in refused.stderr
    with qwen.client() as client:
        client.generate([1, 17, 42], max_tokens=60, ignore_eos=True)
    balance = tool_json(qwen, "balance", "--dry-run", "--since-start", "--min-rows", "1")
    assert balance["layers"][1]["why"] == "it has no experts" and balance["lost"] == 0
    assert not [c for c in balance["changes"] if c["field"].startswith("1/")]
    tool(qwen, "drain", "expert-1")
    wait_for(lambda: sum(s["state"] == "resident" for s in qwen.shards_of("expert-0")) == 24,
             "all shards on expert-0")
    assert value(qwen, "1/0") is None
    tool(qwen, "drain", "expert-1", "--undo")
    for process in qwen.names():
        wait_for(lambda p=process: qwen.hash_of(p) == before, f"the placement before in {process}")
