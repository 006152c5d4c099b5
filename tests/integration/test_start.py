"""Starting in any order, and the mistakes of who starts it: a message that says what to do."""
import shutil
import socket
import subprocess

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sy_client import BIN, MODEL, WAIT_S, channel, error_of, http_get, wait_for
from sy_cluster import run_tool, server_env

TIERS = ["router", "expert", "aggregator"]


def why_not_ready(cluster, name):
    status, body = http_get(cluster.http(name), "/readyz")
    return body.strip() if status == 503 else None


@pytest.mark.sanitize
def test_the_aggregator_is_started_first_and_says_what_it_waits_for(hand):
    cluster = hand()
    cluster.start("aggregator")
    wait_for(lambda: "Redis" in (why_not_ready(cluster, "aggregator-0") or ""), "no Redis")
    with channel(cluster.address("aggregator-0")) as c:
        health = health_pb2_grpc.HealthStub(c).Watch(health_pb2.HealthCheckRequest(),
                                                     timeout=WAIT_S * 4)
        assert next(health).status == health_pb2.HealthCheckResponse.NOT_SERVING
        cluster.start_redis()
        wait_for(lambda: "placement init" in (why_not_ready(cluster, "aggregator-0") or ""),
                 "the aggregator to miss a placement")
        cluster.set_placement(cluster.spread(1))
        wait_for(lambda: "router" in (why_not_ready(cluster, "aggregator-0") or ""), "no router")
        with cluster.client() as client:
            assert not client.model().ready
            error = error_of(client.start, "A", timeout=WAIT_S)
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error.details()
        cluster.start("router")
        wait_for(lambda: "shards" in (why_not_ready(cluster, "aggregator-0") or ""), "no node")
        cluster.start("expert")
        assert next(health).status == health_pb2.HealthCheckResponse.SERVING
    cluster.wait_ready()
    with cluster.client() as client:
        assert client.generate("A", max_tokens=4).tokens


@pytest.mark.sanitize
def test_redis_comes_last(hand):
    cluster = hand()
    for tier in TIERS:
        cluster.start(tier)
    wait_for(lambda: why_not_ready(cluster, "expert-0"), "the node to wait for Redis")
    cluster.start_redis()
    cluster.set_placement(cluster.spread(1))
    cluster.wait_ready()
    with cluster.client() as client:
        assert client.generate("A", max_tokens=4).tokens


# ---- mistakes ----

def run_server(tier, *args, timeout_s=WAIT_S):
    """Runs a server that is expected to refuse; (exit code, stderr)."""
    done = subprocess.run([str(BIN / f"switchyard-{tier}"), *map(str, args)], capture_output=True,
                          stdin=subprocess.DEVNULL, text=True, timeout=timeout_s, env=server_env())
    assert done.returncode >= 0, f"killed by signal {-done.returncode}\n{done.stderr}"
    return done.returncode, done.stderr


def last_line(text):
    return text.strip().splitlines()[-1]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("option", ["--listen", "--http"])
def test_a_port_in_use_is_named(tier, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, stderr = run_server(tier, "--model", MODEL, option, f"127.0.0.1:{port}")
    assert code == 1
    assert str(port) in last_line(stderr) and "in use" in last_line(stderr)


@pytest.mark.parametrize("tier", TIERS)
def test_a_socket_that_another_server_serves_is_not_taken_from_it(one_node, tier):
    code, stderr = run_server(tier, "--model", MODEL, "--listen", one_node.address("router-0"))
    assert code == 1
    assert "router-0.sock" in last_line(stderr) and "in use" in last_line(stderr)
    with one_node.client() as client:
        assert client.generate("A", max_tokens=4).tokens


def test_a_second_server_on_the_port_of_the_first_is_refused(hand):
    cluster = hand()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % free.getsockname()[1]
    first = cluster.start("router", listen=address)
    wait_for(lambda: http_get(cluster.http("router-0"), "/healthz")[0] == 200, "the first to run")
    code, stderr = run_server("router", "--model", MODEL, "--listen", address)
    assert code == 1 and address in last_line(stderr)
    assert first.alive()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("cut_at", [0, 5, 5000, -1])
def test_a_truncated_checkpoint_is_named(tmp_path, tier, cut_at):
    model = tmp_path / "trio"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("golden"))
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[:cut_at])
    code, stderr = run_server(tier, "--model", model, "--redis", f"unix:{tmp_path}/no-redis",
                              "--listen", f"unix:{tmp_path}/s")
    assert code == 1 or code == 2
    assert "model.safetensors" in last_line(stderr), stderr


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_of_the_checkpoint_is_named(tmp_path, file):
    model = tmp_path / "trio"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("golden"))
    (model / file).unlink()
    code, stderr = run_server("aggregator", "--model", model)
    assert code in (1, 2) and file in last_line(stderr), stderr


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("args, text", [
    ([], "--model"),
    (["--model", "/no/such/folder"], "/no/such/folder"),
    (["--model", MODEL, "--no-such-option"], "--no-such-option"),
    (["--model", MODEL, "--listen", "nonsense"], "nonsense"),
    (["--model", MODEL, "--threads", "many"], "many"),
    (["--model", MODEL, "--name", "a/b"], "a/b"),
    (["--model", MODEL, "--kernels", "quantum"], "quantum"),
    (["--model", MODEL, "--listen", "unix:/" + "x" * 200], "107"),
    (["--model", MODEL, "--redis", "redis://host:port:port"], "redis"),
])
def test_a_wrong_command_line_is_explained(tier, args, text):
    code, stderr = run_server(tier, *args)
    assert code in (1, 2)
    assert "error:" in last_line(stderr) and text in last_line(stderr)


@pytest.mark.parametrize("tier", TIERS)
def test_help_lists_the_options(tier):
    done = subprocess.run([str(BIN / f"switchyard-{tier}"), "--help"], capture_output=True,
                          text=True, timeout=WAIT_S)
    assert done.returncode == 0
    for option in ("--model", "--listen", "--redis", "--threads"):
        assert option in done.stdout


def test_the_tool_explains_a_truncated_checkpoint(tmp_path):
    model = tmp_path / "trio"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("golden"))
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100000])
    done = run_tool("run", "--model", model, "--prompt", "A", check=False)
    assert done.returncode in (1, 2)
    assert "model.safetensors" in last_line(done.stderr)
