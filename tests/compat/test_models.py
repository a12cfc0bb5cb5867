"""SEMANTICS §2.6: metadata of server and models, configurations, the index."""

import pytest
from compat_models import MODELS
from compat_rules import NEWER, rule, since

EXTENSIONS = {
    *("classification", "sequence", "model_repository", "model_repository(unload_dependents)"),
    *("schedule_policy", "model_configuration", "system_shared_memory", "cuda_shared_memory"),
    *("binary_tensor_data", "parameters", "statistics", "trace", "logging"),
}


@rule("PB-60")
def test_server_metadata(http):
    found = http.get_server_metadata()
    assert set(found) == {"name", "version", "extensions"}
    assert set(found["extensions"]) <= EXTENSIONS
    assert {
        *("classification", "sequence", "schedule_policy", "model_configuration", "statistics"),
        *("binary_tensor_data", "parameters", "trace", "logging", "model_repository"),
    } <= set(found["extensions"])


@rule("PB-61")
def test_metadata_of_a_model(http):
    found = http.get_model_metadata("simple")
    assert (found["name"], found["versions"]) == ("simple", ["1"])
    assert found["platform"]
    assert found["inputs"] == [
        {"name": f"INPUT{i}", "datatype": "INT32", "shape": [-1, 16]} for i in range(2)
    ]
    assert found["outputs"] == [
        {"name": f"OUTPUT{i}", "datatype": "INT32", "shape": [-1, 16]} for i in range(2)
    ]


@rule("PB-61")
@pytest.mark.parametrize(("version", "versions"), [("", ["1", "2"]), ("1", ["1"])])
def test_versions_in_metadata(http, version, versions):
    assert sorted(http.get_model_metadata("versions", version)["versions"]) == versions


@rule("PB-61")
def test_metadata_of_a_model_without_batches(http):
    found = http.get_model_metadata("matrix")
    assert found["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, -1]}]
    assert set(http.get_model_metadata("optional")["inputs"][1]) == {"name", "datatype", "shape"}


@rule("PB-62")
def test_a_configuration_has_its_defaults(http):
    found = http.get_model_config("simple")
    assert (found["name"], found["max_batch_size"]) == ("simple", 8)
    assert found["input"][0]["name"] == "INPUT0"
    assert found["input"][0]["data_type"] == "TYPE_INT32"
    assert found["input"][0]["dims"] == [16]
    assert found["input"][0]["format"] == "FORMAT_NONE"
    assert found["input"][0]["optional"] is False
    assert found["version_policy"] == {"latest": {"num_versions": 1}}
    assert found["dynamic_batching"]["preferred_batch_size"] == [8]
    assert found["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    assert found["dynamic_batching"]["preserve_ordering"] is False
    (group,) = found["instance_group"]
    assert (group["kind"], group["count"]) == ("KIND_CPU", 1)
    assert group["name"].startswith("simple")


@rule("PB-62")
def test_a_configuration_keeps_what_it_says(http):
    policy = http.get_model_config("slow")["dynamic_batching"]["default_queue_policy"]
    assert policy == {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": 20_000_000,
        "allow_timeout_override": True,
        "max_queue_size": 4,
    }
    sequences = http.get_model_config("total")["sequence_batching"]
    assert sequences["max_sequence_idle_microseconds"] == 60_000_000
    assert "direct" in sequences
    assert http.get_model_config("repeat")["model_transaction_policy"] == {"decoupled": True}
    parameters = http.get_model_config("echo")["parameters"]
    assert parameters["error_if"] == {"string_value": "INPUT0=666"}


@rule("PB-62", "PB-33")
def test_no_configuration_of_an_unknown_model(target):
    for path in ("nobody/config", "nobody", "echo/versions/9/config", "echo/versions/9"):
        answer = target.get(f"/v2/models/{path}")
        assert answer.status == 404
        assert "is not found" in answer.error


@rule("PB-63", "TC-06")
def test_the_index_lists_every_version(http):
    found = {
        (each["name"], each.get("version")): each for each in http.get_model_repository_index()
    }
    for name, model in MODELS.items():
        for version in model.versions:
            assert found[name, str(version)]["state"] == "READY"


@rule("PB-63")
def test_the_index_tells_why_a_version_is_not_there(strict):
    found = {each["name"]: each for each in strict.post("/v2/repository/index").json}
    assert found["echo"]["state"] == "READY"
    assert found["broken"]["state"] == "UNAVAILABLE"
    assert found["broken"]["version"] == "1"
    assert found["broken"]["reason"]


@rule("PB-63")
def test_the_index_may_list_what_is_ready_only(strict):
    found = strict.post("/v2/repository/index", {"ready": True}).json
    assert "broken" not in {each["name"] for each in found}
    assert "echo" in {each["name"] for each in found}


@rule("PB-63")
@since(NEWER)  # 2.51 answers 500
@pytest.mark.parametrize("value", ["yes", 1, [True]])
def test_ready_must_be_a_boolean(target, value):
    answer = target.post("/v2/repository/index", {"ready": value})
    assert answer.status == 400
    assert answer.error
