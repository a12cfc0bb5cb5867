"""What `headrace topics schema` says of a model on a topic of other people's."""

from __future__ import annotations

from gateway_kit import identity_config
from headrace.deploy.commands_topics_schema import print_schema
from headrace.deploy.inputs import specs_of
from headrace.deploy.snippets import Asked
from headrace.streams.fleet import Fleet
from headrace.streams.status import ModelState, VersionStatus, WorkerStatus, encode_status


def test_a_mapped_model_takes_records_of_its_own_and_no_program_sends_one(capsys):
    version = VersionStatus(1, ModelState.READY, config=identity_config())
    status = WorkerStatus(
        *("w1", "echo", 1),
        requests_topic="payments",
        results_topic="scores",
        partitions=3,
        versions=(version,),
        mapped="json",
    )
    fleet = Fleet()
    fleet.apply(status.key, encode_status(status), 1)
    route = fleet.route("echo", "", 1)
    asked = Asked("echo", "payments", "scores", specs_of(route.signature), "127.0.0.1:9092")
    print_schema(asked, route)
    printed = capsys.readouterr().out
    for text in (
        "records of your own, json, read by a mapping",
        "headrace map check REPOSITORY --mapping echo=FILE",
        "INPUT0",
        "response-index",
    ):
        assert text in printed, text
    # In the first column: the text of another row may end with the word, by where the console breaks lines.
    assert "│ idempotency-key" not in printed
    assert "InferRequest" not in printed
    assert "SyncClient" not in printed
