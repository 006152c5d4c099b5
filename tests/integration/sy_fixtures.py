"""Fixtures of the whole-system and chaos tests (pytest.ini names this module).
Clusters that tests only read are shared for a session."""
import pytest

import sy_client
import sy_cluster
from sy_cluster import HandCluster, UpCluster


@pytest.fixture(scope="session", autouse=True)
def stubs(tmp_path_factory):
    assert (sy_client.BIN / "switchyard-aggregator").exists(), \
        f"{sy_client.BIN} has no switchyard-aggregator: build first, or set SY_BUILD"
    sy_client.load(tmp_path_factory.mktemp("stubs"))


def _shared(n_experts, **options):
    cluster = UpCluster(experts=n_experts, **options)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def one_node(stubs):
    """A cluster with one expert node that holds every shard. Tests must leave it as it was."""
    yield from _shared(1)


@pytest.fixture(scope="session")
def three_nodes(stubs):
    """A cluster with the shards spread over three nodes. Tests must leave it as it was."""
    yield from _shared(3)


@pytest.fixture(scope="session")
def two_devices_each(stubs):
    """Two nodes with two devices each: a message's experts may live on both."""
    yield from _shared(2, devices="cpu:0,cpu:1")


@pytest.fixture(scope="session")
def router_in_process(stubs):
    """Two nodes, and the gate computed in the aggregator."""
    yield from _shared(2, router="inproc", routers=0)


@pytest.fixture
def client(one_node):
    with one_node.client() as c:
        yield c


@pytest.fixture
def hand():
    """A factory of clusters that the test may break; they are closed at its end."""
    made = []

    def make(**counts):
        made.append(HandCluster(**counts))
        return made[-1]
    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def up():
    """A factory of clusters of `switchyard up`; they are taken down at the test's end."""
    made = []

    def make(**options):
        made.append(UpCluster(**options))
        return made[-1]
    yield make
    for cluster in made:
        cluster.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for cluster in sy_cluster.live:
            report.sections.append((f"logs in {cluster.dir}", cluster.report()))
