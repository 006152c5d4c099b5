"""Health checking and reflection with gRPC's own Python packages."""
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import \
    ProtoReflectionDescriptorDatabase
import grpc

import sy_client
from sy_client import WAIT_S, channel, error_of

pytestmark = pytest.mark.sanitize
TIERS = {"aggregator-0": "switchyard.v1.Aggregator", "router-0": "switchyard.v1.Router",
         "expert-0": "switchyard.v1.Expert"}
SERVING = health_pb2.HealthCheckResponse.SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture(params=sorted(TIERS))
def tier(request, one_node):
    with channel(one_node.address(request.param)) as c:
        yield TIERS[request.param], c


def test_health_of_the_server_the_service_and_the_model(tier):
    service, c = tier
    stub = health_pb2_grpc.HealthStub(c)
    for name in ("", service, "trio"):
        assert stub.Check(health_pb2.HealthCheckRequest(service=name),
                          timeout=WAIT_S).status == SERVING, name
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=WAIT_S)
        assert next(watch).status == SERVING, name
        watch.cancel()


def test_health_of_a_service_that_is_not_there(tier):
    stub = health_pb2_grpc.HealthStub(tier[1])
    request = health_pb2.HealthCheckRequest(service="no.such.Service")
    assert error_of(stub.Check, request, timeout=WAIT_S).code() == grpc.StatusCode.NOT_FOUND
    watch = stub.Watch(request, timeout=WAIT_S)
    assert next(watch).status == UNKNOWN
    watch.cancel()


def test_reflection_lists_and_describes_the_services(tier):
    service, c = tier
    database = ProtoReflectionDescriptorDatabase(c)
    assert {service, "grpc.health.v1.Health"} <= set(database.get_services())
    described = DescriptorPool(database).FindServiceByName(service)
    module = {"Aggregator": sy_client.pb, "Router": sy_client.router_pb,
              "Expert": sy_client.expert_pb}[service.rsplit(".", 1)[1]]
    own = module.DESCRIPTOR.services_by_name[service.rsplit(".", 1)[1]]
    assert {m.name: (m.input_type.full_name, m.output_type.full_name) for m in described.methods} \
        == {m.name: (m.input_type.full_name, m.output_type.full_name) for m in own.methods}


@pytest.mark.parametrize("version", ["v1alpha", "v1"])
def test_reflection_speaks_both_versions_and_survives_unknown_names(tier, version):
    service, c = tier
    method = c.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
    requests = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=s)
                for s in (service, "no.such.Symbol", f"{service}.NoSuchMethod")]
    requests.append(reflection_pb2.ServerReflectionRequest(list_services=""))
    replies = list(method(iter(requests), timeout=WAIT_S))
    assert [r.WhichOneof("message_response") for r in replies] == [
        "file_descriptor_response", "error_response", "error_response", "list_services_response"]
    assert replies[1].error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert service in {s.name for s in replies[3].list_services_response.service}
