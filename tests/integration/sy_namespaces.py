"""Hosts on one machine: every expert node in a network namespace of its own, all on one bridge, so
that a test can drop a node's packets. Nothing outside these namespaces is touched."""
import itertools
import os
import subprocess

import pytest

from sy_cluster import HandCluster

numbers = itertools.count()


def ip(*args):
    subprocess.run(["ip", *map(str, args)], check=True, capture_output=True, text=True)


class Network:
    """A hub with a bridge, and a namespace for each name: 10.199.0.1 is the hub, nodes follow."""

    def __init__(self, names):
        self.prefix = f"sy{os.getpid()}x{next(numbers)}"
        self.hub = f"{self.prefix}-hub"
        self.address, self.made = {}, []
        try:
            self._make(self.hub)
            self._in(self.hub, "ip", "link", "add", "br0", "type", "bridge")
            self._in(self.hub, "ip", "addr", "add", "10.199.0.1/24", "dev", "br0")
            self._in(self.hub, "ip", "link", "set", "br0", "up")
            for i, name in enumerate(names):
                self._add_host(name, i)
        except (OSError, subprocess.CalledProcessError) as e:
            self.close()
            pytest.skip(f"no network namespaces here: {getattr(e, 'stderr', None) or e}")

    def _make(self, namespace):
        ip("netns", "add", namespace)
        self.made.append(namespace)
        ip("-n", namespace, "link", "set", "lo", "up")

    def _in(self, namespace, *command):
        subprocess.run(["ip", "netns", "exec", namespace, *map(str, command)], check=True,
                       capture_output=True, text=True)

    def _add_host(self, name, i):
        namespace = self.namespace(name)
        self._make(namespace)
        ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{i}",
           "netns", self.hub)
        self.address[name] = f"10.199.0.{i + 2}"
        ip("-n", namespace, "addr", "add", f"{self.address[name]}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")
        ip("-n", self.hub, "link", "set", f"p{i}", "master", "br0", "up")

    def namespace(self, name):
        return f"{self.prefix}-{name}"

    def drop(self, name):
        """Every packet from and to the host is lost from now on: no reset, no error, silence."""
        rules = ("add table inet lost; "
                 "add chain inet lost in { type filter hook input priority 0; policy accept; }; "
                 "add chain inet lost out { type filter hook output priority 0; policy accept; }; "
                 "add rule inet lost in iifname eth0 drop; "
                 "add rule inet lost out oifname eth0 drop")
        self._in(self.namespace(name), "nft", rules)

    def heal(self, name):
        self._in(self.namespace(name), "nft", "delete", "table", "inet", "lost")

    def close(self):
        for namespace in self.made:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)
        self.made = []


class NamespaceCluster(HandCluster):
    """Expert nodes are hosts of their own, reached by TCP; the rest is in the hub. Redis, HTTP and
    clients use Unix sockets, which do not care about namespaces."""

    def __init__(self, experts, routers=2, aggregators=1, expert_options=None,
                 aggregator_options=None):
        self.network = Network([f"expert-{i}" for i in range(experts)])
        self.expert_options = expert_options or {}
        super().__init__()
        self.start_redis()
        for i in range(experts):
            self.start("expert", i, **self.expert_options)
        for i in range(routers):
            self.start("router", i)
        for i in range(aggregators):
            self.start("aggregator", i, **(aggregator_options or {}))

    def address(self, name):
        if name in self.network.address:
            return f"{self.network.address[name]}:7000"
        return super().address(name)

    def argv(self, tier, name, **options):
        host = name if name in self.network.address else "hub"
        return ["ip", "netns", "exec", self.network.namespace(host),
                *super().argv(tier, name, **options)]

    def close(self, keep=False):
        try:
            super().close(keep)
        finally:
            self.network.close()
