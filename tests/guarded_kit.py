"""A broker behind TLS, SASL and ACLs, and a hand that grants and withdraws rights while clients run.

Who comes by the plain listener is the super user; everybody else has the rights that tests give them.
"""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import brokers
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from cluster import Cluster
from headrace.streams.kafka_rights import Operation, Resource

STORE_PASSWORD = "changeit"

GUARD = """
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_ann="{ann}";
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PKCS12
ssl.keystore.location={folder}/broker.p12
ssl.keystore.password=changeit
ssl.key.password=changeit
listener.name.mutual.ssl.client.auth=required
listener.name.mutual.ssl.truststore.type=PEM
listener.name.mutual.ssl.truststore.location={folder}/client.pem
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""

# Numbers of Kafka's protocol (org.apache.kafka.common.resource, .acl).
RESOURCES = {
    Resource.TOPIC: 2,
    Resource.GROUP: 3,
    Resource.CLUSTER: 4,
    Resource.TRANSACTIONAL_ID: 5,
}
OPERATIONS = {
    "All": 2,
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.DESCRIBE: 8,
}
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
VISIBLE_S = 30.0


@dataclass(frozen=True)
class Guarded:
    """Addresses and files of a guarded broker.

    Attributes:
        plain: Where the super user gets in.
        sasl: SASL over TLS.
        mutual: TLS that wants a client's certificate.
        trust: The broker's certificate as PEM.
        client: A client's key and certificate as PEM, the key encrypted with `STORE_PASSWORD`.
        folder: With the Java stores that these were made from.
    """

    plain: str
    sasl: str
    mutual: str
    trust: Path
    client: Path
    folder: Path

    def user(self, name: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Return the properties of a user, as a file of Kafka's would have them."""
        module = {"PLAIN": "plain.Plain", "SCRAM-SHA-512": "scram.Scram"}[mechanism]
        return {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required "
            f'username="{name}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.trust),
        }


@contextlib.contextmanager
def guarded_broker(
    folder: Path, *, ann: str, users: dict[str, str], more: str = ""
) -> Iterator[Guarded]:
    """Run one.

    Args:
        folder: For everything.
        ann: Password of the user ``ann``, who comes by PLAIN.
        users: Password of each user who comes by SCRAM-SHA-512.
        more: Further lines of the broker's configuration.
    """
    for tool in ("keytool", "openssl"):
        if shutil.which(tool) is None:
            brokers.lacking(f"no {tool}")
    for name in ("broker", "client"):
        _key_pair(folder, name)
    subprocess.run(
        [
            *("openssl", "pkcs12", "-in", str(folder / "client.p12")),
            *("-passin", f"pass:{STORE_PASSWORD}", "-passout", f"pass:{STORE_PASSWORD}"),
            *("-out", str(folder / "client-key.pem")),
        ],
        check=True,
        capture_output=True,
    )
    scram = [f"SCRAM-SHA-512=[name={n},password={p}]" for n, p in users.items()]
    cluster = Cluster(
        folder,
        size=1,
        listeners={"SASL": "SASL_SSL", "MUTUAL": "SSL"},
        more=GUARD.format(folder=folder, ann=ann) + more,
        format_options=[word for user in scram for word in ("--add-scram", user)],
    )
    with cluster:
        yield Guarded(
            cluster.bootstrap,
            cluster.listeners["SASL"],
            cluster.listeners["MUTUAL"],
            folder / "broker.pem",
            folder / "client-key.pem",
            folder,
        )


def _key_pair(folder: Path, name: str) -> None:
    """Make a key and a certificate of its own: ``<name>.p12``, and the certificate as ``<name>.pem``."""
    store = ["-keystore", str(folder / f"{name}.p12"), "-storepass", STORE_PASSWORD]
    keytool = ["keytool", *store, "-alias", name]
    subject = ["-dname", f"CN={name}", "-ext", "SAN=ip:127.0.0.1", "-validity", "3650"]
    for command in (
        [*keytool, "-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", *subject],
        [*keytool, "-exportcert", "-rfc", "-file", str(folder / f"{name}.pem")],
    ):
        subprocess.run(command, check=True, capture_output=True)


class Acls:
    """Grants rights and withdraws them. Each call returns once the broker goes by it."""

    def __init__(self, admin: AIOKafkaAdminClient) -> None:
        self._admin = admin

    async def allow(self, user, operation, resource, name, *, prefix=False):
        """Grant a right."""
        await self._change(
            CreateAclsRequest, ALLOW, user, (operation, resource, name), prefix=prefix
        )

    async def deny(self, user, operation, resource, name):
        """Forbid it whatever else is granted."""
        await self._change(CreateAclsRequest, DENY, user, (operation, resource, name))

    async def allow_again(self, user, operation, resource, name):
        """Take a prohibition back."""
        await self._change(DeleteAclsRequest, DENY, user, (operation, resource, name))

    async def _change(self, kind, permission, user, right, *, prefix=False):
        operation, resource, name = right
        entry = (
            RESOURCES[resource],
            name,
            PREFIXED if prefix else LITERAL,
            f"User:{user}",
            "*",
            OPERATIONS[operation],
            permission,
        )
        response = await self._admin._send_request(kind(*entry))
        (*_, results) = response.to_object().values()
        assert [result["error_code"] for result in results] == [0], response
        if kind is DeleteAclsRequest:
            assert len(results[0]["matching_acls"]) == 1, response
        # The controller has it now; the broker goes by it once it has read the controller's log.
        async with asyncio.timeout(VISIBLE_S):
            while await self._is_known(entry) is (kind is DeleteAclsRequest):  # noqa: ASYNC110  # its state
                await asyncio.sleep(0.01)

    async def _is_known(self, entry) -> bool:
        response = await self._admin._send_request(DescribeAclsRequest(*entry))
        return bool(response.resources)


@asynccontextmanager
async def acls(guarded: Guarded) -> AsyncIterator[Acls]:
    """Open the hand that holds the rights."""
    admin = AIOKafkaAdminClient(bootstrap_servers=guarded.plain)
    await admin.start()
    try:
        yield Acls(admin)
    finally:
        await admin.close()
