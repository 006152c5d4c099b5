#!/usr/bin/env python3
"""The whole service on a GPU: two expert nodes, a router, an aggregator and Redis; experts change
nodes while clients ask, and every bit of every answer is compared with what came before. Prints one
JSON object; exits with 1 when something was wrong.
usage: gpu_service.py --build DIR [--device cuda:0] [--seconds N] [--descriptors FILE]"""
import argparse
import json
import os
import pathlib
import re
import sys
import tempfile
import time
import traceback
import types

HERE = pathlib.Path(__file__).resolve().parent
LAYERS, EXPERTS = 4, 16  # of the bundled model
N_CLIENTS = 4
PROMPTS = ["In the beginning", "static int sqlite3", "Natural resources:", "A",
           "And the LORD spake unto Moses, saying,", "/*\n** This routine is called"]


def arguments():
    parser = argparse.ArgumentParser(description="The whole service on a GPU.")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=20.0, help="of traffic, about")
    parser.add_argument("--descriptors", type=pathlib.Path,
                        help="the messages as protoc describes them, where there is no protoc")
    return parser.parse_args()


# ---- messages without generated code ----

def modules_of(path):
    """{file name: module} with the classes and stubs that generated code would have."""
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())

    def message(name):
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name.lstrip(".")))

    def stub(service):
        def connect(self, channel):
            for m in service.method:
                kind = ("stream_" if m.client_streaming else "unary_") + \
                    ("stream" if m.server_streaming else "unary")
                setattr(self, m.name, getattr(channel, kind)(
                    f"/{package}.{service.name}/{m.name}",
                    request_serializer=message(m.input_type).SerializeToString,
                    response_deserializer=message(m.output_type).FromString))
        return type(service.name + "Stub", (), {"__init__": connect})

    found = {}
    for file in files:
        package = file.package
        module = types.SimpleNamespace()
        for m in file.message_type:
            setattr(module, m.name, message(f"{package}.{m.name}"))
        for enum in file.enum_type:
            for value in enum.value:
                setattr(module, value.name, value.number)
        for service in file.service:
            setattr(module, service.name + "Stub", stub(service))
        found[file.name] = module
    return found


def load_messages(sy_client, descriptors, folder):
    try:
        import grpc_tools  # noqa: F401
    except ImportError:
        if descriptors is None:
            raise
        modules = modules_of(descriptors)
        sy_client.pb = sy_client.rpc = modules["switchyard/v1/aggregator.proto"]
        sy_client.tensor_pb = modules["switchyard/v1/tensor.proto"]
        return
    sy_client.load(folder)


# ---- the cluster ----

def arithmetic_of(sy_cluster, device):
    """What nodes with this device announce, as `switchyard devices` tells it."""
    told = json.loads(sy_cluster.run_tool("devices", "--json"))["cuda"]
    for found in told["devices"]:
        if found["device"] == device:
            assert found["usable"], f"{device} is not usable: {found.get('why')}"
            major, minor = found["compute_capability"]
            return found.get("arithmetic", f"bf16-mma/1:sm_{major}{minor}")
    raise AssertionError(f"there is no {device}: {told.get('why')}")


def start_cluster(sy_cluster, device):
    cluster = sy_cluster.HandCluster()
    cluster.start_redis()
    for i in range(2):
        # The nodes share a GPU: neither may take all of its memory.
        cluster.start("expert", i, devices=device, memory_mb=512, linger_s=1)
    cluster.start("router", 0)
    cluster.start("aggregator", 0, expert_arithmetic=arithmetic_of(sy_cluster, device))
    cluster.set_placement(placement(device, 0))
    cluster.wait_ready()
    cluster.wait_connected()
    cluster.wait_same_hash(*cluster.names())
    return cluster


def placement(device, shift):
    return {f"{layer}/{e}": f"expert-{(layer + e + shift) % 2}/{device}"
            for layer in range(LAYERS) for e in range(EXPERTS)}


def resident(cluster, node):
    shards = cluster.shards_of(node) or []
    return {(s["layer"], s["expert"]) for s in shards if s["state"] == "resident"}


def wanted_of(fields, node):
    return {tuple(map(int, key.split("/"))) for key, value in fields.items()
            if value.startswith(node + "/")}


def device_metrics(sy_client, cluster):
    """What the nodes say of their GPUs, summed: {metric: value}."""
    found = {}
    for name in ("expert-0", "expert-1"):
        _, body = sy_client.http_get(cluster.http(name), "/metrics")
        for metric, value in re.findall(r"^(switchyard_expert_device_\w+)\{[^}]*\} (\S+)$", body,
                                        re.M):
            found[metric] = found.get(metric, 0.0) + float(value)
    return found


# ---- traffic ----

class Traffic:
    """Clients that ask, compare and take the time."""

    def __init__(self, sy_client, cluster):
        self.sy_client, self.cluster = sy_client, cluster
        self.cases = [dict(prompt=p, max_tokens=24, ignore_eos=True, want_logits=True, **how)
                      for p in PROMPTS
                      for how in ({}, dict(sampling=dict(temperature=0.9), seed=3))]
        self.phase = None
        self.seconds = {}  # phase: [of a request, ...]
        with cluster.client() as client:
            self.want = [client.generate(**case) for case in self.cases]
            for i in range(len(self.cases)):
                self.ask(client, i)

    def ask(self, client, i):
        i %= len(self.cases)
        got, want = client.generate(**self.cases[i]), self.want[i]
        assert got.tokens == want.tokens, f"case {i}: tokens {got.tokens}, want {want.tokens}"
        assert self.sy_client.same_bits(got.logits, want.logits), f"case {i}: logits differ"

    def pass_by(self, phase, seconds, background):
        """A phase without moves, of at least so long and at least a request of each client."""
        self.phase = phase
        time.sleep(seconds)  # what is measured, not waited for
        self.sy_client.wait_for(
            lambda: len(self.seconds.get(phase, [])) >= N_CLIENTS or background.failures,
            f"requests {phase} the moves")

    def start(self):
        def run(i, stop):
            with self.cluster.client() as client:
                while not stop.is_set():
                    phase, begin = self.phase, time.monotonic()
                    self.ask(client, i)
                    self.seconds.setdefault(phase, []).append(time.monotonic() - begin)
                    i += N_CLIENTS
        return self.sy_client.Background(N_CLIENTS, run)


def quantile(values, q):
    values = sorted(values)
    return values[min(int(q * len(values)), len(values) - 1)] if values else None


def summary(seconds):
    def ms(value):
        return None if value is None else round(value * 1e3, 3)
    return {"requests": len(seconds), "p50_ms": ms(quantile(seconds, 0.5)),
            "p99_ms": ms(quantile(seconds, 0.99)), "max_ms": ms(max(seconds, default=None))}


def migrate(sy_client, cluster, device, shift):
    """Every expert changes its node. How long until all of them are where they are wanted."""
    begin = time.monotonic()
    fields = placement(device, shift)
    cluster.set_placement(fields)
    for node in ("expert-0", "expert-1"):
        want = wanted_of(fields, node)
        sy_client.wait_for(lambda n=node, w=want: w <= resident(cluster, n),
                           f"{len(want)} shards on {node}")
    cluster.wait_same_hash(*cluster.names())
    return time.monotonic() - begin


def serve(sy_client, cluster, args):
    """The figures. Anything that is not as before raises."""
    traffic = Traffic(sy_client, cluster)
    traffic.phase = "before"
    background = traffic.start()
    try:
        traffic.pass_by("before", args.seconds / 4, background)
        traffic.phase = "during"
        moves, end = [], time.monotonic() + args.seconds / 2
        while not moves or (time.monotonic() < end and not background.failures):
            moves.append(migrate(sy_client, cluster, args.device, len(moves) + 1))
        traffic.pass_by("after", args.seconds / 4, background)
    finally:
        background.stop()
    metrics = device_metrics(sy_client, cluster)
    assert metrics.get("switchyard_expert_device_batches_total", 0) > 0, \
        f"no node has computed anything on {args.device}: {metrics}"
    failures = cluster.metric("aggregator-0", "switchyard_layer_failures_total")
    assert failures == 0, f"{failures} layer calls failed"
    return {"experts_moved": len(moves) * LAYERS * EXPERTS,
            "move_all_s": {"p50": round(quantile(moves, 0.5), 3), "max": round(max(moves), 3)},
            "requests": {phase: summary(s) for phase, s in traffic.seconds.items()},
            "clients": N_CLIENTS, "tokens_a_request": 24, "device": metrics}


def beside_the_cpu(sy_cluster, cluster):
    """How many tokens of a greedy answer are those of the exact arithmetic: told, not judged."""
    told = json.loads(sy_cluster.run_tool("run", "--model", sy_cluster.MODEL, "--prompt",
                                          PROMPTS[0], "--max-tokens", 24, "--temperature", 0,
                                          "--json"))
    with cluster.client() as client:
        got = client.generate(prompt=PROMPTS[0], max_tokens=24, ignore_eos=True)
    same = 0
    for one, other in zip(told["tokens"], got.tokens):
        if one != other:
            break
        same += 1
    return {"tokens": len(got.tokens), "same_as_cpu_from_the_start": same}


def main():
    args = arguments()
    os.environ["SY_BUILD"] = str(args.build.resolve())
    sys.path.insert(0, str(HERE.parent / "integration"))
    import sy_client
    import sy_cluster

    result = {"result": "fail"}
    with tempfile.TemporaryDirectory(prefix="sy-stubs-") as stubs:
        load_messages(sy_client, args.descriptors, stubs)
        cluster = None
        try:
            cluster = start_cluster(sy_cluster, args.device)
            result.update(serve(sy_client, cluster, args))
            result["beside_the_cpu"] = beside_the_cpu(sy_cluster, cluster)
            result["result"] = "pass"
        except Exception as e:  # pylint: disable=broad-except
            result["reason"] = f"{type(e).__name__}: {e}".strip()[:2000]
            traceback.print_exc()
            for broken in sy_cluster.live:
                print(broken.report(), file=sys.stderr)
        finally:
            try:
                if cluster is not None:
                    cluster.close()
            except Exception as e:  # pylint: disable=broad-except
                result["result"] = "fail"
                result.setdefault("reason", f"at the end: {e}"[:2000])
    print(json.dumps(result))
    return 0 if result["result"] == "pass" else 1


if __name__ == "__main__":
    sys.exit(main())
