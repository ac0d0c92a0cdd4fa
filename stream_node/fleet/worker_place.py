"""WorkerPlace: the data that one of several worker processes of a machine gets from its supervisor at its start."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import msgspec
import trio

from ockam.actors.address import complete_address, split_host_port
from ockam.transport.sockets import socket_name
from stream_node.fleet.cluster.view import StoredMember
from stream_node.node.config import Config, ConfigError

VARIABLE = "_STREAM_NODE_WORKER"
"""The variable by which a worker process gets its place. No user sets it."""
PORT_MAX = 65_535


class WorkerPlace(msgspec.Struct, frozen=True):
    """The place of one worker process. Descriptors are those of files that the process has inherited."""

    number: int
    addresses: list[str]  # by worker, the `host:port` that it has for the others
    public: list[int]  # the descriptors of its sockets at the node's address
    private: int  # the descriptor of its socket at its own address
    supervisor: int  # the descriptor of a pipe that ends with the supervisor
    report: int  # the descriptor of the pipe for `report_listening`
    use: int  # the descriptor of the file in which the workers count what identities use (`ockam.quotas.shared_use`)
    secret: str  # the secret by which the workers know each other

    @property
    def name(self) -> str:
        return worker_name(self.number)

    @property
    def members(self) -> list[StoredMember]:
        """The workers of the node, as members that share its shards."""
        return [
            StoredMember(worker_name(number), address, f"{self.secret}{number}", 0, False)
            for number, address in enumerate(self.addresses)
        ]

    @property
    def token(self) -> str:
        return f"{self.secret}{self.number}"

    def report_listening(self) -> None:
        """Reports to the supervisor, once, that this worker listens."""
        # A supervisor that was killed reads nothing, and the worker ends soon.
        with suppress(BrokenPipeError):
            os.write(self.report, b"\n")
        os.close(self.report)

    def listeners(self) -> list[trio.SocketListener]:
        """The sockets of this worker, the one for the other workers last."""
        sockets = (socket.socket(fileno=descriptor) for descriptor in (*self.public, self.private))
        return [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in sockets]


def worker_name(number: int) -> str:
    return f"w{number:02}"


def own_settings(config: Config, place: WorkerPlace | None) -> Config:
    """Returns the settings of one worker process; without a place, those of a whole node.
    Each worker has HTTP and gRPC at ports of its own: those of the settings plus the number of the worker."""
    if place is None:
        return config

    def door_of(address: str) -> str:
        plain, slash, services = address.partition("/")
        host, _, port = plain.rpartition(":")
        return f"{host}:{int(port) + place.number}{slash}{services}" if port.isdigit() and int(port) else address

    http, grpc = tuple(map(door_of, config.http)), tuple(map(door_of, config.grpc))
    config = msgspec.structs.replace(config, http=http, grpc=grpc)
    if config.database is None:
        return config
    # With a shared database, the workers are members of a cluster.
    name = f"{config.cluster}-{place.name}" if config.cluster else place.name
    return msgspec.structs.replace(config, cluster=name, cluster_address=place.addresses[place.number])


def shares_shards(config: Config) -> bool:
    return config.cluster is not None or config.workers > 1


def has_own_databases(config: Config) -> bool:
    """Whether each of several workers has a database of its own, so that none of them knows all streams."""
    return config.workers > 1 and config.database is None


def take_place() -> WorkerPlace | None:
    """Returns the place of this process, or None if it has no supervisor."""
    text = os.environ.pop(VARIABLE, None)
    return None if text is None else msgspec.json.decode(text, type=WorkerPlace)


class OwnAddress(msgspec.Struct, frozen=True):
    """The address at which one worker listens for the others. told: the `host:port` that they use, if it differs."""

    host: str
    port: int
    told: str | None

    @property
    def host_told(self) -> str:
        return self.host if self.told is None else split_host_port(self.told)[0]

    def __str__(self) -> str:
        return socket_name((self.host, self.port))


def own_address(config: Config, number: int) -> OwnAddress:
    """Returns the address at which a worker listens for the others.
    Workers without a cluster are on one machine, and the kernel picks their ports. The members of a cluster also reach
    the workers from other machines, through firewalls: so the workers have the ports after the port of the setting
    `cluster_address`, or of `listen`, in the order of their numbers."""
    if config.database is None or config.cluster is None:
        return OwnAddress("127.0.0.1", 0, None)
    host, port = split_host_port(config.listen)
    if config.cluster_address is None:
        return OwnAddress(host, port + 1 + number if port else 0, None)
    told, port = split_host_port(complete_address(config.cluster_address))
    return OwnAddress(host, port + 1 + number, socket_name((told, port + 1 + number)))


def check_own_addresses(config: Config) -> None:
    """Raises ConfigError if the workers of a cluster cannot have the ports that they need."""
    _, listen_port = split_host_port(config.listen)
    ports = [own_address(config, number).port for number in range(config.workers)]
    if max(ports) > PORT_MAX or (listen_port and listen_port in ports):
        raise ConfigError(
            f"cluster_address: the {config.workers} workers listen at the ports {ports[0]} to {ports[-1]}, behind that "
            f"of this setting; choose one so that these are ports and {listen_port} is not among them"
        )
