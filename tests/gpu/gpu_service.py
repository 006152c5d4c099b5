#!/usr/bin/env python3
"""The whole service on a GPU: two expert nodes, a router, an aggregator and Redis; experts change
nodes while clients ask, and every bit of every answer is compared with what came before and with what
one process computes (`switchyard run`). Prints one JSON object; exits with 1 when something was wrong.
usage: gpu_service.py --build DIR [--device cuda:0] [--seconds N] [--descriptors FILE]
                      [--family NAME] [--weights FORMAT] [--trunk-on-gpu]"""
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

import gpu_model

HERE = pathlib.Path(__file__).resolve().parent
N_CLIENTS = 4
N_TOKENS, N_TOKENS_FAMILY = 24, 8
# Nodes believe for two seconds what they were told of who has which shard.
BETWEEN_MOVES_S = 2.2
PROMPTS = ["In the beginning", "static int sqlite3", "Natural resources:", "A",
           "And the LORD spake unto Moses, saying,", "/*\n** This routine is called"]


def arguments():
    parser = argparse.ArgumentParser(description="The whole service on a GPU.")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=20.0, help="of traffic, about")
    parser.add_argument("--descriptors", type=pathlib.Path,
                        help="the messages as protoc describes them, where there is no protoc")
    parser.add_argument("--family", help="a small model of this family, not the bundled one")
    parser.add_argument("--weights", help="how nodes and aggregator hold weights")
    parser.add_argument("--trunk-on-gpu", action="store_true", help="the aggregator's, too")
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

class Setting:
    """What is served, how, and what one process makes of it."""

    def __init__(self, args, sy_cluster, folder):
        self.device, self.weights = args.device, args.weights
        self.trunk = args.device if args.trunk_on_gpu else "cpu:0"
        self.tool = gpu_model.Switchyard(args.build.resolve())
        self.model = sy_cluster.MODEL
        if args.family:
            self.model = self.tool.make(args.family, pathlib.Path(folder) / args.family)
        self.n_tokens = N_TOKENS_FAMILY if args.family else N_TOKENS
        self.prompts = gpu_model.PROMPTS if args.family else PROMPTS
        told = json.loads(self.tool("inspect", self.model, "--json"))
        self.n_experts = told["dims"]["experts"]

    def by_one_process(self):
        """[Answer, ...], whose bits clusters have."""
        held = ["--weights", self.weights] if self.weights else []
        return self.tool.run(self.model, self.prompts, "--devices", self.device, "--trunk-device",
                             self.trunk, *held, n_tokens=self.n_tokens)

    def placement(self, shift):
        return {f"*/{e}": f"expert-{(e + shift) % 2}/{self.device}" for e in range(self.n_experts)}


def arithmetic_of(tool, device):
    """What nodes with this device announce, as `switchyard devices` tells it."""
    told = json.loads(tool("devices", "--json"))["cuda"]
    for found in told["devices"]:
        if found["device"] == device:
            assert found["usable"], f"{device} is not usable: {found.get('why')}"
            major, minor = found["compute_capability"]
            return found.get("arithmetic", f"bf16-mma/1:sm_{major}{minor}")
    raise AssertionError(f"there is no {device}: {told.get('why')}")


def start_cluster(sy_cluster, setting):
    cluster = sy_cluster.HandCluster()
    cluster.model_name = setting.model.name
    cluster.start_redis()
    for i in range(2):
        # The nodes share a GPU: neither may take all of its memory. What moves comes from the other.
        cluster.start("expert", i, devices=setting.device, model=setting.model, memory_mb=512,
                      linger_s=0, load_from="peers", weights=setting.weights)
    cluster.start("router", 0, model=setting.model)
    cluster.start("aggregator", 0, model=setting.model, trunk_device=setting.trunk,
                  expert_arithmetic=arithmetic_of(setting.tool, setting.device),
                  weights=setting.weights)
    cluster.set_placement(setting.placement(0))
    cluster.wait_ready()
    cluster.wait_connected()
    cluster.wait_same_hash(*cluster.names())
    return cluster


def resident(cluster, node):
    shards = cluster.shards_of(node) or []
    return {(s["layer"], s["expert"]) for s in shards if s["state"] == "resident"}


def sum_of(sy_client, cluster, pattern):
    """Of both nodes' metrics of which the pattern has name and value: {name: sum}."""
    found = {}
    for name in ("expert-0", "expert-1"):
        _, body = sy_client.http_get(cluster.http(name), "/metrics")
        for metric, value in re.findall(pattern, body, re.M):
            found[metric] = found.get(metric, 0.0) + float(value)
    return found


def device_metrics(sy_client, cluster):
    """What the nodes say of their GPUs."""
    return sum_of(sy_client, cluster, r"^(switchyard_expert_device_\w+)\{[^}]*\} (\S+)$")


def ways(sy_client, cluster, n_at_first):
    """How shards came to nodes: {"ipc": N, "bytes": N, "checkpoint": N}, where the last are more than
    there were at first; and what was said of the second."""
    found = sum_of(sy_client, cluster,
                   r'^switchyard_expert_fetched_shards_total\{way="(\w+)"\} (\S+)$')
    found.update(sum_of(sy_client, cluster,
                        r'^switchyard_expert_loads_total\{source="(checkpoint)"\} (\S+)$'))
    found["checkpoint"] -= n_at_first
    said = [line for node in ("expert-0", "expert-1")
            for line in cluster.process[node].text().splitlines()
            if " WARN " in line and "CUDA IPC" in line]
    return {**{way: int(n) for way, n in found.items()}, **({"said": said[:4]} if said else {})}


# ---- traffic ----

class Traffic:
    """Clients that ask, compare and take the time."""

    def __init__(self, sy_client, cluster, setting):
        self.sy_client, self.cluster = sy_client, cluster
        self.cases = [dict(prompt=p, max_tokens=setting.n_tokens, ignore_eos=True, want_logits=True,
                           **how)
                      for p in setting.prompts
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


def migrate(sy_client, cluster, setting, everything, shift):
    """Every expert changes its node. How long until all of them are where they are wanted."""
    begin = time.monotonic()
    cluster.set_placement(setting.placement(shift))
    for i in range(2):
        want = {(layer, e) for layer, e in everything if (e + shift) % 2 == i}
        sy_client.wait_for(lambda n=f"expert-{i}", w=want: w == resident(cluster, n),
                           f"{len(want)} shards on expert-{i} and no others")
    cluster.wait_same_hash(*cluster.names())
    return time.monotonic() - begin


def check_one_process(setting, traffic):
    """The greedy answers, every second one, beside those of `run`."""
    reason = gpu_model.not_same(traffic.want[::2], setting.by_one_process())
    assert reason is None, f"not what `switchyard run` gives: {reason}"
    return "the same bits"


def serve(sy_client, cluster, setting, seconds):
    """The figures. Anything that is not as before raises."""
    traffic = Traffic(sy_client, cluster, setting)
    beside_run = check_one_process(setting, traffic)
    everything = resident(cluster, "expert-0") | resident(cluster, "expert-1")
    traffic.phase = "before"
    background = traffic.start()
    try:
        traffic.pass_by("before", seconds / 4, background)
        traffic.phase = "during"
        moves, end = [], time.monotonic() + seconds / 2
        while not moves or (time.monotonic() < end and not background.failures):
            time.sleep(BETWEEN_MOVES_S)
            moves.append(migrate(sy_client, cluster, setting, everything, len(moves) + 1))
        traffic.pass_by("after", seconds / 4, background)
    finally:
        background.stop()
    metrics = device_metrics(sy_client, cluster)
    assert metrics.get("switchyard_expert_device_batches_total", 0) > 0, \
        f"no node has computed anything on {setting.device}: {metrics}"
    failures = cluster.metric("aggregator-0", "switchyard_layer_failures_total")
    assert failures == 0, f"{failures} layer calls failed"
    return {"beside_run": beside_run, "experts_moved": len(moves) * len(everything),
            "moved_by": ways(sy_client, cluster, len(everything)),
            "move_all_s": {"p50": round(quantile(moves, 0.5), 3), "max": round(max(moves), 3)},
            "requests": {phase: summary(s) for phase, s in traffic.seconds.items()},
            "clients": N_CLIENTS, "tokens_a_request": setting.n_tokens, "device": metrics}


def beside_the_cpu(setting, cluster):
    """How many tokens of a greedy answer are those of the exact arithmetic: told, not judged."""
    want = setting.tool.run(setting.model, PROMPTS[:1], n_tokens=N_TOKENS, want_logits=False)[0]
    with cluster.client() as client:
        got = client.generate(prompt=PROMPTS[0], max_tokens=N_TOKENS, ignore_eos=True)
    same = 0
    for one, other in zip(want.tokens, got.tokens):
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
            setting = Setting(args, sy_cluster, stubs)
            cluster = start_cluster(sy_cluster, setting)
            result.update(serve(sy_client, cluster, setting, args.seconds))
            result["beside_the_cpu"] = beside_the_cpu(setting, cluster)
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
