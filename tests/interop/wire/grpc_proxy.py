"""RocketMQ's own gRPC proxy 5.3.3 (cluster mode) before a server, and the gRPC client of RocketMQ 5 as a driver.

Rule: defaults of the release, except for ports and what keeps it small. Never: touches anything outside the directory
given.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.java_release import JavaBuild, prepare_build
from tests.interop.wire.background import Background, free_port, is_listening
from tests.interop.wire.peer import Server
from tests.interop.wire.rocketmq_server import JVM_OPTIONS

PROXY_BUILD = JavaBuild("proxy-5.3.3", "proxy-5.3", ())
CLIENT_BUILD = JavaBuild("grpc-5.1.0", "grpc-5", ("driver", "grpc-5"))


class GrpcProxy:
    """One proxy process."""

    def __init__(self, directory: Path, server: Server) -> None:
        home = prepare_build(PROXY_BUILD)
        port = free_port()
        self.endpoints = f"127.0.0.1:{port}"
        (directory / "conf").mkdir(parents=True)
        settings = {
            "namesrvAddr": server.nameserver,
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER",
            "grpcServerPort": port,
            "remotingListenPort": free_port(),
            "localServeAddr": "127.0.0.1",
            "grpcThreadPoolNums": 4,
            # Routes and settings of topics and groups that a test has just made.
            "topicRouteServiceCacheRefreshSeconds": 1,
            "topicConfigCacheRefreshSeconds": 1,
            "subscriptionGroupConfigCacheRefreshSeconds": 1,
        }
        config = directory / "conf" / "rmq-proxy.json"
        config.write_text(json.dumps(settings))
        options = [*JVM_OPTIONS, "-Xmx384m", f"-Duser.home={directory}"]
        command = ["java", *options, "-cp", f"{home / 'lib'}/*", "org.apache.rocketmq.proxy.ProxyStartup"]
        self.process = Background(
            [*command, "-pc", str(config)],
            directory / "proxy.log",
            environment={"RMQ_PROXY_HOME": str(directory), "ROCKETMQ_HOME": str(directory)},
        )
        self.process.wait_until(lambda: is_listening(self.endpoints), "the proxy")

    def stop(self) -> None:
        self.process.kill()


def grpc_client_command(directory: Path) -> list[str]:
    """What starts the driver; the file for its port comes behind."""
    home = prepare_build(CLIENT_BUILD)
    options = [*JVM_OPTIONS, "-Xmx256m", f"-Duser.home={directory}"]
    class_path = f"{home / 'classes'}:{home / 'lib'}/*"
    return ["java", *options, "-cp", class_path, "penstock.interop.grpc.GrpcTool"]
