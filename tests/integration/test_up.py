"""`switchyard up`, status and down: a local cluster that looks after itself."""
import json
import os
import pathlib
import signal
import subprocess

import pytest

from sy_client import BIN, MODEL, WAIT_S, same_bits, wait_for
from sy_cluster import run_tool, server_env
from test_faults import expect_answers, keep_asking, traffic_passes

pytestmark = pytest.mark.asan


def retry(client, **fields):
    """Asks until there is an answer: what a client does about UNAVAILABLE."""
    import grpc

    def ask():
        try:
            return client.generate(**fields)
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
            return None
    return wait_for(ask, "an answer")


def test_status_tells_every_process_and_the_placement(one_node):
    status = one_node.status()
    processes = {p["name"]: p for p in status["processes"]}
    assert set(processes) == {"redis", "expert-0", "router-0", "aggregator-0"}
    assert all(p["ready"] and p["state"] == "running" and p["pid"] > 0 and p["rss_bytes"] > 1 << 20
               for p in processes.values())
    hashes = {p["placement_hash"] for n, p in processes.items() if n != "redis"}
    assert len(hashes) == 1 and hashes == {one_node.told["placement_hash"]}
    text = run_tool("status", "--dir", one_node.dir)
    assert "expert-0" in text and "aggregator-0" in text


def test_generate_prints_what_the_cluster_writes(one_node, client):
    want = client.generate("In the beginning", max_tokens=24, ignore_eos=True)
    args = ["--prompt", "In the beginning", "--max-tokens", 24, "--ignore-eos"]
    here = run_tool("run", "--model", MODEL, *args)
    there = run_tool("generate", "--target", one_node.aggregators[0], *args)
    assert want.text in here and here == there
    told = json.loads(run_tool("generate", "--target", one_node.aggregators[0], *args, "--json"))
    assert told["tokens"] == want.tokens
    assert told["placement_hash"] == one_node.told["placement_hash"]


def test_the_only_node_is_killed_and_comes_back_by_itself(up):
    cluster = up(experts=1)
    fields = dict(prompt="In the beginning", want_logits=True)
    with cluster.client() as client:
        want = client.generate(**fields)
        old = cluster.kill("expert-0")
        got = retry(client, **fields)
        assert same_bits(got.logits, want.logits)
        cluster.wait_restarted("expert-0", old)
        cluster.wait_ready()


def test_redis_is_killed_and_the_operators_edits_are_not_lost(up):
    cluster = up(experts=2)
    traffic = keep_asking(cluster, expect_answers(cluster))
    before = cluster.wait_same_hash(*cluster.names())
    cluster.set_placement({"0/0": "expert-1/cpu:0", "2/5": "expert-0/cpu:0 expert-1/cpu:0"})
    edited = cluster.wait_same_hash(*cluster.names(), other_than=before)
    with cluster.redis() as r:
        fields = r.hgetall(cluster.placement_key)

        def copies():
            return r.info("commandstats").get("cmdstat_dump", {}).get("calls", 0)
        enough = copies() + 4  # the placement and the history, twice
        wait_for(lambda: copies() >= enough, "the supervisor to copy the placement")
    old = cluster.kill("redis")
    cluster.wait_restarted("redis", old)

    def put_back():
        try:
            with cluster.redis() as r:
                return r.hgetall(cluster.placement_key) == fields
        except Exception:  # not up yet
            return False
    wait_for(put_back, "the placement to be back in Redis")
    traffic_passes(traffic)
    assert cluster.wait_same_hash(*cluster.names()) == edited
    traffic.stop()


def test_two_clusters_side_by_side_and_down_leaves_nothing(up, tmp_path):
    first = up(experts=1)
    second = up(experts=2, routers=2, aggregators=2)
    with first.client() as a, second.client(0) as b, second.client(1) as c:
        answers = [x.generate("A", want_logits=True) for x in (a, b, c)]
    assert all(same_bits(x.logits, answers[0].logits) for x in answers)
    pids = [p["pid"] for p in first.status()["processes"]]
    run_tool("down", "--dir", first.dir)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    left = [p.name for p in first.dir.iterdir() if p.suffix in (".sock", ".http", ".json", ".pid")]
    assert left == []
    assert run_tool("status", "--dir", first.dir, check=False).returncode == 1
    with second.client() as b:
        assert b.generate("A", max_tokens=4).tokens


def test_a_folder_that_is_in_use_is_refused(one_node):
    done = run_tool("up", "--model", MODEL, "--dir", one_node.dir, "--detach", check=False)
    assert done.returncode == 1
    assert "down" in done.stderr, "says how to stop the other"
    assert one_node.ready("aggregator-0")


@pytest.mark.parametrize("args, text", [
    (["--dir", "/tmp/sy-" + "x" * 120, "--model", MODEL], "too long"),
    (["--dir", "/tmp/sy-none", "--model", "/no/such/model"], "/no/such/model"),
    (["--model", MODEL], "--dir"),
    (["--dir", "/tmp/sy-none"], "--model"),
    (["--dir", "/tmp/sy-none", "--model", MODEL, "--experts", "0"], "experts"),
    (["--dir", "/tmp/sy-none", "--model", MODEL, "--router", "elsewhere"], "elsewhere"),
])
def test_what_cannot_be_started_is_explained(args, text):
    done = run_tool("up", *args, "--detach", check=False)
    assert done.returncode in (1, 2) and text in done.stderr, done.stderr
    for folder in pathlib.Path("/tmp").glob("sy-[nx]*"):  # made before the refusal, and empty
        if folder.name == "sy-none" or set(folder.name[3:]) == {"x"}:
            folder.rmdir()


@pytest.mark.sanitize
def test_ctrl_c_stops_everything_in_order(tmp_path_factory):
    folder = pathlib.Path(subprocess.run(["mktemp", "-d", "/tmp/sy-XXXX"], capture_output=True,
                                         text=True, check=True).stdout.strip())
    up = subprocess.Popen([str(BIN / "switchyard"), "up", "--model", str(MODEL), "--dir",
                           str(folder), "--json"], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=server_env())
    try:
        text = ""
        while not text.endswith("}\n") or text.count("{") != text.count("}"):
            line = up.stdout.readline()
            assert line, "it ended before it was ready"
            text += line
        pids = [p["pid"] for p in json.loads(text)["processes"]]
        up.send_signal(signal.SIGINT)
        assert up.wait(WAIT_S * 2) == 0
    finally:
        up.kill()
        up.stdout.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    run = [log.read_text() for log in folder.glob("*.log")]
    assert run
    subprocess.run(["rm", "-r", str(folder)], check=True)
