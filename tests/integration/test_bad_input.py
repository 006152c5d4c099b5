"""What a client can send that is wrong. Each gets a typed error that names the field, at once; and
the server answers the next good request as if nothing had been."""
import socket

import grpc
import numpy as np
import pytest

import sy_client
import sy_reference as reference
from sy_client import WAIT_S, channel, error_info, error_of, request, rows
from test_layers import compute_request, forward, route_request

pytestmark = pytest.mark.asan
INVALID = grpc.StatusCode.INVALID_ARGUMENT
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
GENERATE = "/switchyard.v1.Aggregator/Generate"


@pytest.fixture(scope="module")
def good_answer(one_node):
    with one_node.client() as c:
        return c.generate("In the beginning", max_tokens=8).tokens


@pytest.fixture(autouse=True)
def still_serves_afterwards(client, good_answer):
    yield
    assert client.generate("In the beginning", max_tokens=8).tokens == good_answer


def sampling(**fields):
    return lambda: request("x", sampling=fields)


NAN = float("nan")
BAD_GENERATE = {
    "no input": (lambda: request(), "input"),
    "an empty prompt": (lambda: request(""), "prompt"),
    "no tokens": (lambda: request([]), "tokens"),
    "a token past the vocabulary": (lambda: request([1, 2048]), "2048"),
    "a prompt as long as the context": (lambda: request([5] * 1024), "1024"),
    "a prompt far past the context": (lambda: request("word " * 20000), "1024"),
    "a negative temperature": (sampling(temperature=-0.5), "temperature"),
    "a temperature that is no number": (sampling(temperature=NAN), "temperature"),
    "an infinite temperature": (sampling(temperature=float("inf")), "temperature"),
    "top_p of zero": (sampling(top_p=0.0), "top_p"),
    "top_p above one": (sampling(top_p=1.5), "top_p"),
    "min_p above one": (sampling(min_p=1.5), "min_p"),
    "a negative min_p": (sampling(min_p=-0.1), "min_p"),
    "a repetition penalty of zero": (sampling(repetition_penalty=0.0), "repetition_penalty"),
    "too many stop texts": (lambda: request("x", stop=[str(i) for i in range(17)]), "stop"),
    "an empty stop text": (lambda: request("x", stop=["a", ""]), "stop"),
    "a stop text of a kilobyte": (lambda: request("x", stop=["a" * 1024]), "stop"),
    "too many top logprobs": (lambda: request("x", logprobs=True, top_logprobs=21), "top_logprobs"),
    "more experts than the model has": (lambda: request(
        "x", policy=sy_client.tensor_pb.RoutePolicy(experts_per_token=3)), "experts_per_token"),
}


@pytest.mark.parametrize("what", BAD_GENERATE)
def test_generate_refuses(client, what):
    make, field = BAD_GENERATE[what]
    error = error_of(client.stub.Generate, make(), timeout=WAIT_S)
    assert error.code() == INVALID, error.details()
    assert field in error.details()
    assert error_info(error).domain == "switchyard"


def test_an_unknown_model_is_not_found(client):
    error = error_of(client.start, "x", model="no-such-model")
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert "no-such-model" in error.details() and "trio" in error.details()
    info = error_info(error)
    assert (info.reason, info.domain) == ("MODEL_UNKNOWN", "switchyard")


def test_a_model_name_of_a_megabyte_is_refused(client):
    error = error_of(client.start, "x", model="m" * (1 << 20))
    assert error.code() == INVALID and len(error.details()) < 2000


def hidden(**change):
    message = rows(reference.hidden(4, seed=1))
    for name, value in change.items():
        setattr(message, name, value)
    return message


def spoiled(value):
    x = reference.hidden(4, seed=1)
    x[2, 100] = value
    return rows(x)


# made when the test runs: the stubs are not there before
BAD_ROWS = {
    "a layer that is not there": (lambda: hidden(), 4, "layer"),
    "a layer of two billion": (lambda: hidden(), 1 << 31, "layer"),
    "another hidden size": (lambda: rows(np.zeros((4, 64), np.float32)), 0, "192"),
    "no rows": (lambda: None, 0, "hidden"),
    "zero rows": (lambda: hidden(rows=0, data=b""), 0, "hidden"),
    "data that is too short": (lambda: hidden(data=b"\0" * (4 * 192 * 4 - 1)), 0, "data"),
    "data that is too long": (lambda: hidden(data=b"\0" * (4 * 192 * 4 + 4)), 0, "data"),
    "an unknown dtype": (lambda: hidden(dtype=77), 0, "dtype"),
    "no dtype": (lambda: hidden(dtype=0), 0, "dtype"),
    "a shape that overflows a product": (lambda: hidden(rows=1 << 31, cols=1 << 31), 0, "hidden"),
    "a NaN": (lambda: spoiled(np.nan), 0, "NaN"),
    "an infinity": (lambda: spoiled(np.inf), 0, "infinity"),
}


@pytest.mark.parametrize("what", BAD_ROWS)
@pytest.mark.parametrize("tier", ["aggregator", "router", "expert"])
def test_a_layer_call_refuses(one_node, tier, what):
    make, layer, field = BAD_ROWS[what]
    with channel(one_node.address(f"{tier}-0")) as c:
        if tier == "aggregator":
            method = sy_client.rpc.AggregatorStub(c).Forward
            message = forward(hidden(), layer)
        elif tier == "router":
            method = sy_client.router_rpc.RouterStub(c).Route
            message = route_request(np.zeros((1, 192)), layer)
        else:
            method = sy_client.expert_rpc.ExpertStub(c).Compute
            message = compute_request(layer, np.zeros((1, 192)), [(3, 0)])[0]
        message.ClearField("hidden")
        rows_given = make()
        if rows_given is not None:
            message.hidden.CopyFrom(rows_given)
        error = error_of(method, message, timeout=WAIT_S)
    assert error.code() == INVALID, error.details()
    assert field in error.details()


def change(**fields):
    def apply(message):
        for name, value in fields.items():
            setattr(message, name, value)
    return apply


def u16(*values):
    return np.array(values, "<u2").tobytes()


def u32(*values):
    return np.array(values, "<u4").tobytes()


BAD_COMPUTE = {  # of a message with the experts 0 and 3, ends 1 and 3, rows 0 0 1 of 2
    "no experts": (change(expert=b"", group_end=b"", row=b""), "expert"),
    "half an expert": (change(expert=b"\0\0\3"), "expert"),
    "experts that do not ascend": (change(expert=u16(3, 0)), "expert"),
    "an expert twice": (change(expert=u16(3, 3)), "expert"),
    "an expert past the last": (change(expert=u16(0, 16)), "expert"),
    "an end for only one of two": (change(group_end=u32(3)), "group_end"),
    "ends that do not ascend": (change(group_end=u32(3, 1)), "group_end"),
    "a last end before the last row": (change(group_end=u32(1, 2)), "group_end"),
    "a last end of four billion": (change(group_end=u32(1, 0xFFFFFFFF)), "group_end"),
    "a row past the last": (change(row=u32(0, 0, 2)), "row"),
    "a row of four billion": (change(row=u32(0, 0, 0xFFFFFFFF)), "row"),
    "weights for some": (change(weight=u32(0)), "weight"),
    "a weight that is no number": (change(weight=np.array([1, np.nan, 1], "<f4").tobytes()),
                                   "weight"),
    "PARTIAL without weights": (change(combine=1), "weight"),
}


@pytest.mark.parametrize("what", BAD_COMPUTE)
def test_compute_refuses(one_node, what):
    spoil, field = BAD_COMPUTE[what]
    message = compute_request(0, reference.hidden(2, 0), [(0, 0), (3, 0), (3, 1)])[0]
    spoil(message)
    with channel(one_node.address("expert-0")) as c:
        error = error_of(sy_client.expert_rpc.ExpertStub(c).Compute, message, timeout=WAIT_S)
    assert error.code() == INVALID, error.details()
    assert field in error.details()


# ---- bytes that no client library would send ----

def raw(client, path, message):
    method = client.channel.unary_stream(path, request_serializer=lambda b: b,
                                         response_deserializer=lambda b: b)
    return error_of(method, message, timeout=WAIT_S)


def field(number, data):
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


GARBAGE = {
    "noise": np.random.default_rng(1).bytes(1000),
    "ones": b"\xff" * 64,
    "a length past the end": b"\x12\x7fshort",
    "a varint without end": b"\x20" + b"\x80" * 30,
    "a group that never closes": b"\x0b" * 50,
    "a field number of zero": b"\x00\x01",
    "a prompt that is no UTF-8": field(2, b"\xc3\x28 ok \xff\xfe"),
    "a prompt cut inside a character": field(2, "…".encode()[:2]),
    "a surrogate in the prompt": field(2, b"\xed\xa0\x80"),
    "an overlong character": field(2, b"\xc0\xaf"),
    "a stop text that is no UTF-8": field(2, b"x") + field(6, b"\xff"),
    "a model name that is no UTF-8": field(1, b"\xff\xfe") + field(2, b"x"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_generate_survives(client, what):
    error = raw(client, GENERATE, GARBAGE[what])
    expected = {INVALID, grpc.StatusCode.NOT_FOUND} if "model" in what else {INVALID}
    assert error.code() in expected, error.details()
    error.details().encode()


@pytest.mark.parametrize("what", ["noise", "ones", "a length past the end", "a varint without end"])
@pytest.mark.parametrize("tier, method", [
    ("aggregator", "Aggregator/Forward"), ("aggregator", "Aggregator/ForwardStream"),
    ("router", "Router/Route"), ("router", "Router/DescribeModel"), ("expert", "Expert/Compute"),
    ("expert", "Expert/Watch")])
def test_every_tier_survives(one_node, tier, method, what):
    with channel(one_node.address(f"{tier}-0")) as c:
        call = c.stream_stream(f"/switchyard.v1.{method}", request_serializer=lambda b: b,
                               response_deserializer=lambda b: b)
        replies = call(iter([GARBAGE[what]]), timeout=WAIT_S)
        if method.endswith("Stream"):
            assert len(list(replies)) == 1, "answered in-band"
        else:
            assert error_of(lambda: replies).code() == INVALID


@pytest.mark.parametrize("service", ["grpc.health.v1.Health/Check",
                                     "grpc.reflection.v1alpha.ServerReflection/"
                                     "ServerReflectionInfo"])
def test_the_standard_services_survive_noise(client, service):
    call = client.channel.stream_stream(f"/{service}", request_serializer=lambda b: b,
                                        response_deserializer=lambda b: b)
    try:
        for _ in call(iter([GARBAGE["noise"]]), timeout=WAIT_S):
            pass
    except grpc.RpcError as error:
        assert error.code() == INVALID, error.details()


def test_a_message_past_the_limit_is_refused_with_the_limit(client):
    message = b"\x12" + b"\x80\x80\x80\x28" + b"x" * (80 << 20)
    error = raw(client, GENERATE, message)
    assert error.code() == EXHAUSTED
    assert str(64 << 20) in error.details() or "64" in error.details()


def test_more_rows_than_a_message_may_have_are_refused_with_the_limit(client):
    x = np.zeros((16385, 192), np.float32)
    error = error_of(client.stub.Forward, forward(x), timeout=WAIT_S)
    assert error.code() == EXHAUSTED
    assert "16384" in error.details()


@pytest.mark.parametrize("path", ["/switchyard.v1.Aggregator/NoSuchMethod", "/no.such.Service/Do",
                                  "/", "/switchyard.v1.Router/Route"])
def test_an_unknown_method_is_unimplemented(client, path):
    assert raw(client, path, b"").code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_call_without_a_message_ends(client):
    call = client.channel.stream_stream(GENERATE, request_serializer=lambda b: b,
                                        response_deserializer=lambda b: b)
    assert error_of(lambda: call(iter([]), timeout=WAIT_S)).code() == INVALID


def test_a_nul_in_the_prompt_is_a_character_like_others(client):
    tokens = [client.generate(p, max_tokens=1).finish.usage.prompt_tokens for p in ("a", "a\0b")]
    assert tokens[1] > tokens[0]


def test_plain_text_on_the_grpc_port_is_not_taken_badly(one_node):
    for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 4096,
                  np.random.default_rng(2).bytes(4096)):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(WAIT_S)
            s.connect(one_node.aggregators[0][len("unix:"):])
            try:
                s.sendall(noise)
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            except ConnectionError:
                pass  # hung up on: fine


@pytest.mark.parametrize("noise", [b"\r\n\r\n", b"GET " + b"x" * 100000, b"\xff" * 1000,
                                   b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
                                   b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_noise_on_the_http_port_is_not_taken_badly(one_node, noise):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(1)
        s.connect(one_node.http("aggregator-0")[len("unix:"):])
        try:
            s.sendall(noise)
            s.shutdown(socket.SHUT_WR)
            answer = s.recv(65536)
        except (ConnectionError, TimeoutError):
            answer = b""  # hung up on, or left to the server's own time limit: both are fine
    assert b"root:" not in answer and b" 200 " not in answer
    assert one_node.ready("aggregator-0")
