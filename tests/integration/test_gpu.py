"""Experts on GPUs: emulated ones, with the plugin's own host code and kernels (tests/emu), so the
whole service is what runs. The same bits wherever a shard lies, and what is seen when a GPU is full,
slow, hangs, is lost or computes wrong."""
import functools
import json
import tempfile

import numpy as np
import pytest

from sy_client import BIN, SANITIZED, http_get, wait_for
from sy_cluster import Process, run_tool
from sy_gpus import Gpus, arithmetic, needs_emulated_gpus
from test_faults import expect_answers, keep_asking, traffic_passes
from test_live_placement import count, settle, states, wait_count

pytestmark = needs_emulated_gpus
LAYERS, EXPERTS = 2, 4
ALL = LAYERS * EXPERTS
FIRST, SECOND = "expert-0/cuda:0", "expert-1/cuda:0"
# Of logits, in units of the largest: activations of experts are rounded to bf16.
TOLERANCE = 0.02
FLIP = "expert.flip:3"  # in the third shard that is loaded, when nothing looks at it any more
STAYS_S = 10 if SANITIZED else 3  # how long a node without its GPU can be asked why
PROMPTS = ["In the beginning", "A", "int x ="]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The smallest model that has everything: two layers of four experts."""
    out = tmp_path_factory.mktemp("gpu") / "small"
    run_tool("synth", "--out", out, "--family", "mixtral", "--layers", LAYERS, "--hidden", 128,
             "--heads", 2, "--kv-heads", 1, "--head-dim", 32, "--experts", EXPERTS, "--top-k", 2,
             "--ffn", 256, "--vocab", 256, "--context", 128, "--seed", 4)
    return out


@pytest.fixture
def gpu_nodes(hand, model):
    """start(options of a node, ...) -> a cluster of nodes on GPUs, and the GPUs of each; placement
    is still empty. A node's option gpus is what its machine has."""
    def start(*options, **aggregator_options):
        cluster = hand()
        cluster.model_name = model.name
        cluster.gpus = []
        cluster.start_redis()
        for i, option in enumerate(options):
            option = {"devices": "cuda:0", "model": model, **option}
            cluster.gpus.append(Gpus(cluster.dir, **option.pop("gpus", {})))
            cluster.start("expert", i, env=cluster.gpus[i].env, **option)
        cluster.start("aggregator", 0, model=model, router="inproc",
                      expert_arithmetic=arithmetic(), **aggregator_options)
        return cluster
    return start


@pytest.fixture(scope="session")
def on_cpu(model, tmp_path_factory):
    """prompt -> tokens and logits of the same checkpoint in one process on a CPU."""
    @functools.cache
    def run(prompt):
        out = tmp_path_factory.mktemp("run") / "logits.npy"
        answer = run_tool("run", "--model", model, "--prompt", prompt, "--max-tokens", 6,
                          "--ignore-eos", "--json", "--logits-out", out)
        return json.loads(answer)["tokens"], np.load(out)
    return run


def check_text(cluster, on_cpu):
    with cluster.client() as client:
        for prompt in PROMPTS:
            tokens, logits = on_cpu(prompt)
            got = client.generate(prompt, max_tokens=6, ignore_eos=True, want_logits=True)
            assert got.tokens == tokens, prompt
            worst = np.abs(got.logits - logits).max() / np.abs(logits).max()
            assert 0 < worst < TOLERANCE, (prompt, worst)


def on_device(cluster, node, device):
    return sum(s["device"] == device and s["state"] == "resident"
               for s in states(cluster, node).values())


def wait_on_device(cluster, node, device, n):
    wait_for(lambda: on_device(cluster, node, device) == n, f"{n} shards on {node}/{device}")


def device_of(cluster, node, device="cuda:0"):
    told = cluster.json_of(node, "/shards")
    return next(d for d in told["devices"] if d["device"] == device)


def device_metric(cluster, node, name, **labels):
    """The value of a metric with labels; None when it is not there."""
    _, body = http_get(cluster.http(node), "/metrics")
    wanted = [f'{k}="{v}"' for k, v in labels.items()]
    for line in body.splitlines():
        if line.startswith(name + "{") and all(w in line for w in wanted):
            return float(line.split()[-1])
    return None


# ---- the same answers ----

@pytest.mark.sanitize
def test_nodes_on_gpus_give_the_text_of_a_cpu(gpu_nodes, on_cpu):
    cluster = gpu_nodes({}, {"devices": "cuda", "gpus": {"n": 2}})
    cluster.set_placement({"*/*": FIRST, "0/1": "expert-1/cuda:0", "1/2": "expert-1/cuda:1",
                           "1/3": "expert-1/cuda:1"})
    settle(cluster)
    check_text(cluster, on_cpu)
    told = cluster.json_of("expert-1", "/shards")
    assert told["arithmetic"] == arithmetic() and told["activations"] == "bf16"
    assert [d["device"] for d in told["devices"]] == ["cuda:0", "cuda:1"]
    assert on_device(cluster, "expert-1", "cuda:1") == 2
    slot_bytes = {s["bytes"] for s in told["shards"]}.pop()
    assert [d["memory_bytes"] for d in told["devices"]] == [slot_bytes, 2 * slot_bytes]
    assert told["devices"][0]["memory_max_bytes"] >= ALL * slot_bytes
    with cluster.redis() as r:
        leases = [r.hgetall(k) if r.type(k) == "hash" else r.get(k) for k in r.keys("*expert-1*")]
    assert any(arithmetic() in str(lease) for lease in leases)
    assert device_metric(cluster, "expert-1", "switchyard_expert_device_rows_total",
                         device="cuda:1") > 0
    assert device_metric(cluster, "expert-1", "switchyard_expert_device_seconds_total",
                         device="cuda:1") > 0


@pytest.mark.asan
def test_no_bit_changes_when_shards_move_between_nodes_and_gpus(gpu_nodes):
    cluster = gpu_nodes({"devices": "cuda:0,cuda:1", "linger_s": 0}, {"linger_s": 0})
    cluster.set_placement({"*/*": FIRST})
    settle(cluster)
    ask = expect_answers(cluster, n_tokens=3)
    traffic = keep_asking(cluster, ask, n_clients=2)
    cluster.set_placement({"*/*": "expert-0/cuda:1"})
    wait_on_device(cluster, "expert-0", "cuda:1", ALL)
    traffic_passes(traffic, 3)
    cluster.set_placement({"*/*": f"{FIRST} {SECOND}"})
    wait_on_device(cluster, "expert-0", "cuda:0", ALL)
    wait_count(cluster, "expert-1", "resident", ALL)
    traffic_passes(traffic, 3)
    cluster.set_placement({"*/*": SECOND})
    wait_for(lambda: not states(cluster, "expert-0"), "expert-0 to let go of everything")
    traffic_passes(traffic, 3)
    traffic.stop()
    assert cluster.metric("aggregator-0", "switchyard_layer_failures_total") == 0
    assert device_metric(cluster, "expert-0", "switchyard_expert_loads_total",
                         source="device") == 2 * ALL


def fetched(cluster, node, way):
    """How many shards, and bytes of them, a node has from others in this way."""
    return [device_metric(cluster, node, f"switchyard_expert_fetched_{what}_total", way=way)
            for what in ("shards", "bytes")]


@pytest.mark.asan
def test_shards_go_from_gpu_to_gpu_of_several_nodes_under_traffic(gpu_nodes, on_cpu):
    taker = {"load_from": "peers", "linger_s": 0}
    cluster = gpu_nodes({"linger_s": 0}, taker, taker)
    cluster.set_placement({"*/*": FIRST})
    settle(cluster)
    ask = expect_answers(cluster, n_tokens=3)
    traffic = keep_asking(cluster, ask, n_clients=2)
    for node, other in [("expert-1", "expert-0"), ("expert-2", "expert-1")]:
        cluster.set_placement({"*/*": f"{node}/cuda:0"})
        wait_count(cluster, node, "resident", ALL)
        wait_for(lambda: not states(cluster, other), f"{other} to let go of everything")
        traffic_passes(traffic, 3)
        shards = states(cluster, node).values()
        assert {s["source"] for s in shards} == {other}
        assert fetched(cluster, node, "ipc") == [ALL, ALL * 3 * 128 * 256 * 2]
        assert fetched(cluster, node, "bytes") == [0, 0]
    traffic.stop()
    assert cluster.metric("aggregator-0", "switchyard_layer_failures_total") == 0
    check_text(cluster, on_cpu)


@pytest.mark.parametrize("giver, taker", [({"shared_memory": "off"}, {}),
                                          ({}, {"shared_memory": "off"})])
def test_nodes_that_share_no_memory_send_each_other_bytes(gpu_nodes, on_cpu, giver, taker):
    cluster = gpu_nodes(giver, {"load_from": "peers", **taker})
    cluster.set_placement({"*/*": FIRST})
    settle(cluster)
    cluster.set_placement({"*/*": SECOND})
    wait_count(cluster, "expert-1", "resident", ALL)
    assert {s["source"] for s in states(cluster, "expert-1").values()} == {"expert-0"}
    assert fetched(cluster, "expert-1", "bytes") == [ALL, ALL * 3 * 128 * 256 * 2]
    assert fetched(cluster, "expert-1", "ipc") == [0, 0]
    check_text(cluster, on_cpu)


def test_what_is_damaged_between_two_gpus_is_sent_as_bytes(gpu_nodes, on_cpu):
    cluster = gpu_nodes({}, {"load_from": "peers"})
    cluster.set_placement({"*/*": FIRST})
    settle(cluster)
    cluster.gpus[1].tell("flip 0 copy")
    cluster.set_placement({"*/*": SECOND})
    wait_count(cluster, "expert-1", "resident", ALL)
    assert fetched(cluster, "expert-1", "bytes")[0] == 1
    assert fetched(cluster, "expert-1", "ipc")[0] == ALL - 1
    log = cluster.process["expert-1"].text()
    assert "(SHARD_CORRUPT, " in log and "but sent as bytes: expert-0: " in log
    check_text(cluster, on_cpu)


def test_a_node_that_dies_while_others_copy_from_its_gpu_costs_nothing(gpu_nodes, on_cpu):
    cluster = gpu_nodes({}, {"load_from": "peers"}, {"load_from": "peers"})
    cluster.set_placement({"*/*": FIRST})
    settle(cluster)
    for gpus in cluster.gpus[1:]:
        gpus.tell("slow 0 20000")
    cluster.set_placement({"*/*": f"{SECOND} expert-2/cuda:0"})
    for node in ("expert-1", "expert-2"):
        wait_for(lambda: count(cluster, node, "resident") > 0, "the first copy")
    cluster.process["expert-0"].kill()
    for gpus in cluster.gpus[1:]:
        gpus.tell()
    for node in ("expert-1", "expert-2"):
        wait_count(cluster, node, "resident", ALL)
        assert fetched(cluster, node, "ipc")[0] > 0
    cluster.wait_ready("aggregator-0")
    check_text(cluster, on_cpu)


def test_up_serves_from_gpus(up, model, on_cpu, tmp_path, monkeypatch):
    for name, value in Gpus(tmp_path).env.items():
        monkeypatch.setenv(name, value)
    cluster = up(model=model, experts=2, devices="cuda:0,cuda:1")
    check_text(cluster, on_cpu)


# ---- what is refused ----

def refusal(model, *options, **gpus):
    """What a node says that must not start."""
    with tempfile.TemporaryDirectory() as directory:
        node = Process("node", [str(BIN / "switchyard-expert"), "--model", str(model), *options],
                       f"{directory}/log", Gpus(directory, **gpus).env)
        assert node.wait() == 2, node.text()
        return node.text().splitlines()[-1]


@pytest.mark.asan
def test_a_gpu_without_room_ends_the_start(model):
    line = refusal(model, "--devices=cuda:0", memory_mb=2)
    assert "--devices: cuda:0" in line and line.endswith("(DEVICE_MEMORY)")


def test_activations_are_not_for_gpus(model):
    assert "--activations bf16" in refusal(model, "--devices=cuda", "--activations=bf16")


@pytest.mark.asan
def test_a_model_in_a_type_that_gpus_do_not_read_is_refused(tmp_path):
    run_tool("synth", "--out", tmp_path / "m", "--layers", 1, "--hidden", 64, "--experts", 2,
             "--ffn", 64, "--vocab", 256, "--dtype", "f32")
    line = refusal(tmp_path / "m", "--devices=cuda:1")
    assert line.endswith("(DEVICE_WEIGHTS)") and "--weights q8 or q4" in line


def test_a_gpu_that_fails_while_it_is_opened_ends_the_start(model, tmp_path):
    gpus = Gpus(tmp_path)
    gpus.tell("lose 0")
    node = Process("node", [str(BIN / "switchyard-expert"), "--model", str(model),
                            "--devices=cuda:0"], f"{tmp_path}/log", gpus.env)
    assert node.wait() == 2, node.text()
    assert "--devices: cuda:0" in node.text().splitlines()[-1]


@pytest.mark.asan
def test_a_node_of_another_arithmetic_is_refused_by_the_aggregator(gpu_nodes, model):
    cluster = gpu_nodes({})
    cluster.start("expert", 1, model=model)
    cluster.set_placement({"*/*": "expert-1/cpu:0"})
    refused = wait_for(lambda: next((n.get("refused") for n in cluster.nodes_of("aggregator-0")
                                     if n["name"] == "expert-1"), None), "the node to be refused")
    assert "arithmetic" in refused
    cluster.set_placement({"*/*": FIRST})
    cluster.wait_ready("aggregator-0")
    expect_answers(cluster, n_tokens=2)


# ---- memory ----

def test_what_has_no_room_on_a_gpu_says_so_and_the_rest_is_served(gpu_nodes):
    cluster = gpu_nodes({"memory_mb": 1}, {})
    cluster.set_placement({"*/*": FIRST})
    wait_for(lambda: count(cluster, "expert-0", "failed") +
             count(cluster, "expert-0", "resident") == ALL, "shards that have room and others")
    slots = count(cluster, "expert-0", "resident")
    assert 0 < slots < ALL
    failed = next(s for s in states(cluster, "expert-0").values() if s["state"] == "failed")
    assert f"all {slots} slots are taken" in failed["reason"]
    told = device_of(cluster, "expert-0")
    assert told["memory_bytes"] == told["memory_max_bytes"] <= 1 << 20
    cluster.set_placement({"1/*": SECOND})
    wait_count(cluster, "expert-1", "resident", EXPERTS)
    wait_count(cluster, "expert-0", "resident", EXPERTS)
    cluster.wait_ready("aggregator-0")
    expect_answers(cluster, n_tokens=2)


# ---- GPUs that fail ----

def replicated(gpu_nodes, *options, **aggregator_options):
    """Every shard on both nodes, and a reference to compare with."""
    cluster = gpu_nodes(*options, **aggregator_options)
    cluster.set_placement({"*/*": f"{FIRST} {SECOND}"})
    wait_count(cluster, "expert-0", "resident", ALL)
    wait_count(cluster, "expert-1", "resident", ALL)
    settle(cluster)
    return cluster, expect_answers(cluster, n_tokens=3)


def check_out_of_service(cluster, reason):
    """expert-0 says everywhere why it does not serve."""
    def why():
        status, body = http_get(cluster.http("expert-0"), "/readyz")
        return status == 503 and reason in body and body
    assert "cuda:0" in wait_for(why, "expert-0 not to be ready")
    wait_for(lambda: cluster.metric("expert-0", "switchyard_ready") == 0, "health to follow")
    told = device_of(cluster, "expert-0")
    assert told["reason"] == reason and "cuda:0" in told["why"]
    shards = wait_for(lambda: count(cluster, "expert-0", "failed") == ALL and
                      states(cluster, "expert-0"), "all shards to have failed")
    assert all("cuda:0" in s["reason"] for s in shards.values())
    assert device_metric(cluster, "expert-0", "switchyard_expert_device_faults_total",
                         device="cuda:0", reason=reason) == 1
    log = cluster.process["expert-0"].text()
    assert f"({reason}, node expert-0)" in log and "this node serves no more" in log


def check_ends(cluster):
    """It ends by itself, to be started again; and so it is."""
    node = cluster.process["expert-0"]
    assert node.wait() == 3, node.tail()
    cluster.gpus[0].tell()
    node.start()
    wait_count(cluster, "expert-0", "resident", ALL)


@pytest.mark.asan
def test_no_request_is_lost_with_a_gpu(gpu_nodes):
    cluster, ask = replicated(gpu_nodes, {"device_exit_s": STAYS_S}, {})
    traffic = keep_asking(cluster, ask, n_clients=2)
    traffic_passes(traffic, 4)
    cluster.gpus[0].tell("lose 0")
    check_out_of_service(cluster, "DEVICE_LOST")
    traffic_passes(traffic, 4)
    check_ends(cluster)
    traffic_passes(traffic, 4)
    traffic.stop()
    assert cluster.metric("aggregator-0", "switchyard_layer_failures_total") == 0


def test_a_gpu_that_hangs_is_lost_after_a_while(gpu_nodes):
    cluster, ask = replicated(gpu_nodes, {"device_exit_s": STAYS_S, "device_timeout_s": 1}, {})
    traffic = keep_asking(cluster, ask, n_clients=2)
    traffic_passes(traffic, 4)
    cluster.gpus[0].tell("hang 0")
    check_out_of_service(cluster, "DEVICE_LOST")
    assert "is not done after 1 s" in device_of(cluster, "expert-0")["why"]
    traffic_passes(traffic, 4)
    check_ends(cluster)
    traffic.stop()


def test_a_slow_gpu_is_slow_and_nothing_else(gpu_nodes):
    cluster, ask = replicated(gpu_nodes, {}, {})
    cluster.gpus[0].tell("slow 0 3000")
    traffic = keep_asking(cluster, ask, n_clients=2)
    traffic_passes(traffic, 6)
    traffic.stop()
    assert cluster.ready("expert-0") and device_of(cluster, "expert-0")["reason"] == ""


def test_a_bit_that_flips_is_found_by_the_self_test(gpu_nodes, model):
    cluster = gpu_nodes({"device_exit_s": STAYS_S, "self_test_s": 1, "gpus": {"fault": FLIP}}, {})
    cluster.set_placement({"*/*": f"{FIRST} {SECOND}"})
    wait_count(cluster, "expert-1", "resident", ALL)
    check_out_of_service(cluster, "DEVICE_PROBE")
    ask = expect_answers(cluster, n_tokens=2)
    assert cluster.process["expert-0"].wait() == 3
    cluster.start("expert", 0, env=cluster.gpus[1].env, devices="cuda:0", model=model)
    wait_count(cluster, "expert-0", "resident", ALL)
    with cluster.client() as client:
        ask(client, 0)


def test_a_supervised_node_that_lost_a_gpu_is_started_again(up, model, tmp_path, monkeypatch):
    gpus = Gpus(tmp_path, n=1)
    for name, value in gpus.env.items():
        monkeypatch.setenv(name, value)
    cluster = up(model=model, experts=1, devices="cuda:0", expert_arg="--device-exit-s=0")
    ask = expect_answers(cluster, n_tokens=2)
    pid = cluster.pid("expert-0")
    gpus.tell("fail cudaEventQuery 1 cudaErrorIllegalAddress",
              "fail cudaGraphLaunch 1 cudaErrorIllegalAddress")
    with cluster.client() as client:
        start = client.start("A", max_tokens=2, ignore_eos=True)
        wait_for(lambda: "exited with code 3" in cluster.report(), "the node to end")
        gpus.tell()
        cluster.wait_restarted("expert-0", pid)
        start.cancel()
        cluster.wait_ready()
        wait_count(cluster, "expert-0", "resident", ALL)
        ask(client, 0)
