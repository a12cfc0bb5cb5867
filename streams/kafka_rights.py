"""Which right is missing where a broker refuses: operation, resource and principal by the names of Kafka's ACLs.

The protocol says of a refusal only what kind of thing it is about. What a part needs for its work it knows itself,
so each brings that along (`Needs`), and the sentence is made here.

Source: Apache Kafka 4.1, security documentation, "Operations and Resources on Protocols"; Read and Write on a topic or
group imply Describe, so Describe is never named by itself where one of the two is needed anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from aiokafka import errors as kafka_errors


class Resource(StrEnum):
    """What a right is about, spelled as Kafka does."""

    TOPIC = "Topic"
    GROUP = "Group"
    TRANSACTIONAL_ID = "TransactionalId"
    CLUSTER = "Cluster"


class Operation(StrEnum):
    """What may be done, spelled as Kafka does."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    DESCRIBE = "Describe"


CLUSTER_NAME = "kafka-cluster"
"""The name that ACLs know every cluster by."""

ABOUT: dict[type[BaseException], Resource] = {
    kafka_errors.TopicAuthorizationFailedError: Resource.TOPIC,
    kafka_errors.GroupAuthorizationFailedError: Resource.GROUP,
    kafka_errors.TransactionalIdAuthorizationFailed: Resource.TRANSACTIONAL_ID,
    kafka_errors.ClusterAuthorizationFailedError: Resource.CLUSTER,
}

USUAL = {Resource.GROUP: Operation.READ, Resource.TRANSACTIONAL_ID: Operation.WRITE}
"""What a client does with these is always the same."""


class Right(NamedTuple):
    """One right, as an ACL grants it."""

    operation: Operation
    resource: Resource
    name: str

    def __str__(self) -> str:
        """Show it as in a sentence."""
        return f"{self.operation} on {self.resource} {self.name}"


@dataclass(frozen=True, slots=True)
class Needs:
    """What somebody needs for what they do.

    Attributes:
        principal: Who the broker takes us for, such as ``User:ann``; ``""`` where only the broker knows.
        rights: Each that is needed.
        others: What is done with topics that `rights` do not name; None where there are no others.
    """

    principal: str
    rights: tuple[Right, ...]
    others: Operation | None = None

    def missing(self, exc: BaseException) -> str:
        """Return who needs what, as a clause; ``""`` where the error is not about rights.

        Args:
            exc: What aiokafka raised; where it, or what caused it, names the topics or the group, only
                these are named.
        """
        cause: BaseException | None = exc
        while cause is not None and type(cause) not in ABOUT:
            cause = cause.__cause__
        if cause is None:
            return ""
        resource, names = ABOUT[type(cause)], named_by(cause)
        known = [right for right in self.rights if right.resource is resource]
        if resource is Resource.TOPIC and names:
            known = [right for right in known if right.name in names]
        if not known:
            operation = self.others if resource is Resource.TOPIC else USUAL.get(resource)
            what = f"{operation or 'a right'} on {resource} {' and '.join(sorted(names))}"
            return self.clause(what.rstrip())
        return self.clause(" and ".join(map(str, known)))

    def clause(self, what: str) -> str:
        """Return who needs it: ``User:ann needs Read on Topic a``."""
        return f"{self.principal or 'this client'} needs {what}"


def topics_rights(operation: Operation, names: Iterable[str]) -> tuple[Right, ...]:
    """Return the same right on several topics."""
    return tuple(Right(operation, Resource.TOPIC, name) for name in sorted(names))


def create_rights(topic: str, *, may_exist: bool) -> str:
    """Return the rights of which one is enough to create a topic; ``may_exist``: it may not be looked at, either."""
    own = Right(Operation.CREATE, Resource.TOPIC, topic)
    either = f"{own} or {Operation.CREATE} on {Resource.CLUSTER} {CLUSTER_NAME}"
    return f"{either}, and {Operation.DESCRIBE} on it if it exists" if may_exist else either


NOBODY = Needs("", ())
"""Of whom nothing is known."""


def named_by(exc: BaseException) -> set[str]:
    """Return what an error names: aiokafka gives it a topic, a set of them, a group, or nothing."""
    found = exc.args[0] if exc.args else ()
    return {found} if isinstance(found, str) else {str(name) for name in found or ()}
