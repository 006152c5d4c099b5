"""A checkpoint with a weight that is NaN: refused by name, or served with --allow-nan, where only
the requests whose tokens meet that weight fail."""
import json
import struct
from pathlib import Path

import grpc
import pytest

from sy_client import error_info, error_of
from sy_cluster import run_tool

CONFIG = Path(__file__).parent.parent / "golden" / "families" / "mixtral.json"
EXPERTS, TOP_K, LAYER = 8, 2, 1
NAN = struct.pack("<f", float("nan"))
pytestmark = pytest.mark.asan


class Checkpoint:
    """Synthetic; one element of the second layer's experts can be made NaN, and whole again."""

    def __init__(self, directory):
        self.directory = directory
        run_tool("synth", "--config", CONFIG, "--dtype", "f32", "--recipe", "vectors",
                 "--out", directory)
        self.file = directory / "model.safetensors"
        self.sound = self.file.read_bytes()
        n = struct.unpack("<Q", self.sound[:8])[0]
        self.header, self.data = json.loads(self.sound[8:8 + n]), 8 + n

    def damage(self, expert):
        name = f"model.layers.{LAYER}.block_sparse_moe.experts.{expert}.w2.weight"
        at = self.data + self.header[name]["data_offsets"][0] + 400
        self.file.write_bytes(self.sound[:at] + NAN + self.sound[at + 4:])

    def run(self, *options):
        return run_tool("run", "--model", self.directory, "--prompt", "a", "--max-tokens", 1,
                        "--ignore-eos", "--json", *options, check=False)

    def chosen(self):
        """The experts that the prompt's token goes to in that layer: those whose NaN it meets."""
        self.file.write_bytes(self.sound)
        want = json.loads(self.run().stdout)["tokens"]
        failed = []
        for expert in range(EXPERTS):
            self.damage(expert)
            done = self.run("--allow-nan")
            if done.returncode == 0:
                assert json.loads(done.stdout)["tokens"] == want
                continue
            assert f"ROW_NOT_FINITE, layer {LAYER + 1}" in done.stderr, done.stderr
            failed.append(expert)
        return failed


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "model")


def test_run_names_the_expert_and_the_option(checkpoint):
    checkpoint.damage(3)
    done = checkpoint.run()
    assert done.returncode == 1 and done.stdout == ""
    assert f"layer {LAYER} expert 3: a weight of down is not a finite number" in done.stderr
    assert "--allow-nan" in done.stderr


def test_a_token_fails_only_where_it_meets_the_weight(checkpoint):
    assert len(checkpoint.chosen()) == TOP_K


def test_a_cluster_goes_on_after_a_request_that_met_the_weight(up, checkpoint):
    checkpoint.damage(checkpoint.chosen()[0])
    cluster = up(model=checkpoint.directory, experts=2, allow_nan=True)
    pids = {name: cluster.pid(name) for name in cluster.names()}
    with cluster.client() as client:
        error = error_of(client.generate, [97], max_tokens=1, ignore_eos=True)
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()
        info = error_info(error)
        assert (info.reason, info.metadata["layer"]) == ("ROW_NOT_FINITE", str(LAYER + 1))
        for token in range(256):
            try:
                assert len(client.generate([token], max_tokens=1, ignore_eos=True).tokens) == 1
                break
            except grpc.RpcError as refused:
                assert error_info(refused).reason == "ROW_NOT_FINITE"
        else:
            pytest.fail("every token meets the expert")
    assert pids == {name: cluster.pid(name) for name in cluster.names()}
