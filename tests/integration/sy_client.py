"""A client of Switchyard as a user would write it: grpcio and stubs generated from proto/.

The stubs are made once a session by grpc_tools.protoc; load() puts them on the path and fills in
the names pb, rpc (the messages and stubs of the aggregator) and their siblings of the other tiers.
"""
import http.client
import importlib
import os
import pathlib
import re
import socket
import sys
import threading
import time

import grpc
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "trio"
BUILD = pathlib.Path(os.environ.get("SY_BUILD", ROOT / "build" / "release")).resolve()
BIN = BUILD / "bin"
SANITIZED = os.environ.get("SY_SANITIZED", "0") not in ("", "0")
LONG = os.environ.get("SY_LONG", "0") not in ("", "0")
# Generous: only a failing test waits so long. Sanitizers slow everything by an order of magnitude.
WAIT_S = 120 if SANITIZED else 45
CHANNEL_OPTIONS = [("grpc.max_receive_message_length", 256 << 20),
                   ("grpc.use_local_subchannel_pool", 1)]  # a connection each, as processes have

pb = rpc = tensor_pb = router_pb = router_rpc = expert_pb = expert_rpc = None


def load(stub_dir):
    """Generates the stubs into stub_dir and binds the module's names to them."""
    global pb, rpc, tensor_pb, router_pb, router_rpc, expert_pb, expert_rpc
    from grpc_tools import protoc

    names = [f"switchyard/v1/{n}.proto" for n in ("tensor", "router", "expert", "aggregator")]
    args = ["protoc", f"-I{ROOT / 'proto'}", f"--python_out={stub_dir}",
            f"--grpc_python_out={stub_dir}", *names]
    assert protoc.main(args) == 0, "protoc failed on proto/"
    sys.path.insert(0, str(stub_dir))
    pb = importlib.import_module("switchyard.v1.aggregator_pb2")
    rpc = importlib.import_module("switchyard.v1.aggregator_pb2_grpc")
    tensor_pb = importlib.import_module("switchyard.v1.tensor_pb2")
    router_pb = importlib.import_module("switchyard.v1.router_pb2")
    router_rpc = importlib.import_module("switchyard.v1.router_pb2_grpc")
    expert_pb = importlib.import_module("switchyard.v1.expert_pb2")
    expert_rpc = importlib.import_module("switchyard.v1.expert_pb2_grpc")


def wait_for(condition, what, timeout_s=None):
    """Returns the first true value of condition(); the pause only saves CPU time."""
    deadline = time.monotonic() + (timeout_s or WAIT_S)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}; last seen: {value!r}")
        time.sleep(0.01)


def channel(address):
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


# ---- HTTP: metrics and probes ----

class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def http_get(address, path):
    """(status, body); (0, reason) while nobody listens."""
    if address.startswith("unix:"):
        connection = _UnixConnection(address[len("unix:"):])
    else:
        connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    except (OSError, http.client.HTTPException) as e:
        return 0, str(e)
    finally:
        connection.close()


def metric(address, name):
    """The value of a metric without labels, None when it is not there."""
    status, body = http_get(address, "/metrics")
    found = re.search(rf"^{re.escape(name)} (\S+)$", body, re.M) if status == 200 else None
    return float(found.group(1)) if found else None


# ---- tensors ----

def rows(array):
    """float32 array -> Rows of f32."""
    array = np.ascontiguousarray(array, dtype="<f4")
    return tensor_pb.Rows(dtype=tensor_pb.F32, rows=array.shape[0], cols=array.shape[1],
                          data=array.tobytes())


def bf16_bits(array):
    """float32 -> the nearest bf16, ties to even, as uint16."""
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def widen_bf16(bits):
    return (bits.astype("<u4") << 16).view("<f4")


def rows_bf16(array):
    return tensor_pb.Rows(dtype=tensor_pb.BF16, rows=array.shape[0], cols=array.shape[1],
                          data=bf16_bits(array).tobytes())


def array(message):
    """Rows of f32 -> float32 array."""
    assert message.dtype == tensor_pb.F32, f"dtype {message.dtype}"
    return np.frombuffer(message.data, "<f4").reshape(message.rows, message.cols)


def same_bits(a, b):
    return np.array_equal(np.ascontiguousarray(a).view(np.uint32),
                          np.ascontiguousarray(b).view(np.uint32))


# ---- generation ----

class Generation:
    """What a Generate call gave, read to its end."""

    def __init__(self):
        self.tokens, self.text, self.logprobs, self.top, self.finish = [], "", [], [], None
        self._logits = []

    def take(self, reply):
        if reply.WhichOneof("event") == "finish":
            assert self.finish is None, "two Finish events"
            self.finish = reply.finish
            return
        assert self.finish is None, "a Delta after Finish"
        delta = reply.delta
        self.tokens += delta.token
        self.text += delta.text
        self.logprobs += delta.logprob
        self.top += [(t.token, t.logprob) for t in delta.top_logprob]
        if delta.HasField("logits"):
            self._logits.append(array(delta.logits))

    @property
    def logits(self):
        return np.concatenate(self._logits)

    @property
    def hash(self):
        return self.finish.placement_hash


def request(prompt=None, **fields):
    """A greedy request for 16 tokens unless told otherwise. prompt: text or a list of token ids."""
    fields.setdefault("max_tokens", 16)
    if isinstance(prompt, str):
        fields["prompt"] = prompt
    elif prompt is not None:
        fields["tokens"] = tensor_pb.TokenIds(id=prompt)
    if isinstance(fields.get("sampling"), dict):
        fields["sampling"] = pb.Sampling(**fields["sampling"])
    return pb.GenerateRequest(**fields)


def read_all(call):
    result = Generation()
    for reply in call:
        result.take(reply)
    assert result.finish is not None, "the stream ended with OK but without Finish"
    return result


class Client:
    """One connection to an aggregator."""

    def __init__(self, address):
        self.address = address
        self.channel = channel(address)
        self.stub = rpc.AggregatorStub(self.channel)

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def generate(self, prompt=None, timeout=None, **fields):
        return read_all(self.stub.Generate(request(prompt, **fields), timeout=timeout or WAIT_S))

    def start(self, prompt=None, timeout=None, **fields):
        """The running call; iterate over it, or cancel it."""
        return self.stub.Generate(request(prompt, **fields), timeout=timeout or WAIT_S * 4)

    def model(self):
        return self.stub.ListModels(pb.ListModelsRequest(), timeout=WAIT_S).model[0]


class Background:
    """Runs fn(stop_event) in n threads; the first failure is raised by stop()."""

    def __init__(self, n, fn):
        self.stopping = threading.Event()
        self.failures, self.results = [], []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(fn, i), daemon=True)
                         for i in range(n)]
        for t in self._threads:
            t.start()

    def _run(self, fn, i):
        try:
            result = fn(i, self.stopping)
            with self._lock:
                self.results.append(result)
        except BaseException as e:  # handed to stop(), whatever it is
            with self._lock:
                self.failures.append(e)
            self.stopping.set()

    def join(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        for t in self._threads:
            t.join(max(0.0, deadline - time.monotonic()))
        alive = sum(t.is_alive() for t in self._threads)
        if self.failures:
            raise self.failures[0]
        assert alive == 0, f"{alive} of {len(self._threads)} threads did not end"
        return self.results

    def stop(self, timeout_s=None):
        self.stopping.set()
        return self.join(timeout_s or WAIT_S * 2)


def error_of(call_or_fn, *args, **kwargs):
    """Runs what must fail and returns its grpc.RpcError."""
    try:
        result = call_or_fn(*args, **kwargs)
        if hasattr(result, "__iter__") and not isinstance(result, (bytes, str)):
            for _ in result:
                pass
    except grpc.RpcError as e:
        return e
    raise AssertionError("the call succeeded")


def error_info(error):
    """The google.rpc.ErrorInfo in grpc-status-details-bin, read by Google's library, or None."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    status = rpc_status.from_call(error)  # raises when code or message differ from the call's
    for detail in status.details if status else []:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info
    return None
