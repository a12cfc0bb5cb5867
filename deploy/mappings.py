"""The mappings of a process: read from their files, fitted to the loaded models, with the formats that they name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from headrace.consumers.mapped import MappedModel, mapped_topics
from headrace.deploy.broker import kafka_properties, schema_registry_properties
from headrace.deploy.settings import Settings, option_name
from headrace.repository.models import LoadedModel
from headrace.repository.repository import Repository
from headrace.schemas.avro_records import FramedAvro, PlainAvro
from headrace.schemas.avro_results import result_schema
from headrace.schemas.errors import ConfigError
from headrace.schemas.mapping import ModelMapping, SourceMapping
from headrace.schemas.mapping_check import MappingPlan, fit_mapping
from headrace.schemas.mapping_fields import check_fields
from headrace.schemas.mapping_file import read_mapping, read_source
from headrace.schemas.mapping_format import FormatSettings, RecordFormat, Schemas
from headrace.schemas.mapping_inputs import compile_inputs
from headrace.schemas.mapping_json import JsonFormat, RawFormat
from headrace.schemas.mapping_tables import nearest
from headrace.schemas.protobuf_records import ProtobufRecords
from headrace.schemas.signature import Signature
from headrace.streams.kafka_security import security
from headrace.streams.registry_settings import registry_settings
from headrace.streams.schema_registry import SchemaRegistry
from headrace.streams.topology import MappedTopics

OPTION = option_name("mapping")


def read_mapping_file(path: Path) -> ModelMapping:
    """Read one mapping file; files that it names are relative to it.

    Raises:
        ConfigError: It cannot be read, is wrong, or names a field that its records cannot have.
    """
    mapping = read_mapping(_text(path, OPTION), str(path), _beside(path))
    if mapping.source.format.word != "v2":
        check_fields(mapping, source_format(mapping.source.format, mapping.file).names)
    return mapping


def read_source_file(path: Path) -> tuple[str, SourceMapping]:
    """Read a file that has the table ``[source]`` alone; returns its text, too.

    Raises:
        ConfigError: It cannot be read, or is wrong.
    """
    text = _text(path, "--source")
    return text, read_source(text, str(path), _beside(path))


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "expected UTF-8 text"
        raise ConfigError(f"the file cannot be read: {why}", field=option, value=path) from exc


def _beside(path: Path) -> Callable[[str], bytes]:
    return lambda name: (path.parent / name).read_bytes()


def read_mappings(settings: Settings) -> dict[str, ModelMapping]:
    """Read the mapping files that the settings name, by model.

    Raises:
        ConfigError: A setting is no ``MODEL=FILE``, a model has two, or a file is wrong.
    """
    found: dict[str, ModelMapping] = {}
    for word in settings.mapping:
        model, _, file = word.partition("=")
        if not model or not file:
            raise ConfigError(
                "expected MODEL=FILE, such as fraud=fraud.toml", field=OPTION, value=word
            )
        if model in found:
            raise ConfigError(f"model '{model}' has a mapping already", field=OPTION, value=word)
        found[model] = read_mapping_file(Path(file))
    return found


def topics_of(mappings: Mapping[str, ModelMapping]) -> dict[str, MappedTopics]:
    """Return the topics of mapped models."""
    return {model: mapped_topics(mapping) for model, mapping in mappings.items()}


def fit_model(
    mapping: ModelMapping, signature: Signature, labels: Mapping[str, Sequence[str]]
) -> MappingPlan:
    """Fit a mapping to one version, its defaults too.

    Raises:
        ConfigError: It does not fit.
    """
    plan = fit_mapping(mapping, signature, labels)
    compile_inputs(plan)
    return plan


def plans_of(mapping: ModelMapping, model: LoadedModel) -> dict[int, MappingPlan]:
    """Fit a mapping to every version of a model; none where records are V2 requests.

    Raises:
        ConfigError: It does not fit one.
    """
    if mapping.source.format.word == "v2":
        return {}
    return {
        number: fit_model(mapping, version.signature, version.labels)
        for number, version in model.versions.items()
    }


def check_models(mappings: Mapping[str, ModelMapping], repository: Repository) -> None:
    """Refuse mappings of models that are not there, or that they do not fit, before anything starts.

    Raises:
        ConfigError: The sentence has the nearest name.
    """
    for name, mapping in mappings.items():
        model = repository.models.get(name)
        if model is None and name in repository.failures:
            continue  # it did not load, which is said already
        if model is None:
            hint = nearest(name, list(repository.models))
            raise ConfigError(
                f"there is no such model, {hint}", field=OPTION, value=f"{name}={mapping.file}"
            )
        plans_of(mapping, model)


@asynccontextmanager
async def mapped_models(
    settings: Settings, mappings: Mapping[str, ModelMapping], repository: Repository
) -> AsyncIterator[dict[str, MappedModel]]:
    """Make the mapped models' parts, with a client of each registry that they name while the block runs.

    Raises:
        ConfigError: A mapping, a schema or a registry's settings are wrong, or a result's schema is not compatible.
        LogError: A registry cannot be asked.
    """
    loaded = {n: m for n, m in mappings.items() if n in repository.models}
    async with registries_of(settings, loaded.values()) as registries:
        yield {
            name: await mapped_model(
                settings, mapping, plans_of(mapping, repository.models[name]), registries
            )
            for name, mapping in loaded.items()
        }


@asynccontextmanager
async def registries_of(
    settings: Settings, mappings: Iterable[ModelMapping]
) -> AsyncIterator[Mapping[str, Schemas]]:
    """Open a client of each registry that mappings name, by URL, while the block runs; nothing is asked yet.

    Raises:
        ConfigError: The settings of one are wrong, or one is needed and not named.
    """
    urls = {
        registry_url(settings, words)
        for mapping in mappings
        for words in (mapping.source.format, mapping.results.format)
    }
    async with AsyncExitStack() as stack:
        yield {
            url: await stack.enter_async_context(_registry(settings, url))
            for url in sorted(urls - {""})
        }


async def mapped_model(
    settings: Settings,
    mapping: ModelMapping,
    plans: Mapping[int, MappingPlan],
    registries: Mapping[str, Schemas],
    *,
    dry: bool = False,
) -> MappedModel:
    """Make the formats of one mapped model.

    Args:
        settings: Of the process.
        mapping: Of the model.
        plans: By version; none where records are V2 requests.
        registries: By URL.
        dry: Results are shown to people: in JSON, whatever the mapping says; no schema is registered.

    Raises:
        ConfigError: A schema is missing, wrong, or not compatible.
        LogError: A registry cannot be asked.
    """
    if not plans:
        return MappedModel(mapping)
    source = mapping.source.format
    results: dict[int, RecordFormat] = {}
    if mapping.results.format.word != "v2":
        words = FormatSettings("json") if dry else mapping.results.format
        schemas = registries.get(registry_url(settings, words))
        topic = mapping.results.topic or _usual_results(settings, plans)
        for number, plan in plans.items():
            results[number] = await result_format(words, plan, topic, schemas)
    schemas = registries.get(registry_url(settings, source))
    return MappedModel(mapping, plans, source_format(source, mapping.file), results, schemas)


def _usual_results(settings: Settings, plans: Mapping[int, MappingPlan]) -> str:
    name = next(iter(plans.values())).signature.model_name
    return f"{settings.topic_prefix}.{name}.results"


def registry_url(settings: Settings, words: FormatSettings) -> str:
    """Return where the registry of a format is, ``""`` where it needs none.

    Raises:
        ConfigError: It needs one, and none is named.
    """
    if words.framing != "confluent" or words.word != "avro":
        return ""
    url = words.registry or schema_registry_properties(settings).get("url", "")
    if not url:
        raise ConfigError(
            "framing confluent needs a Schema Registry: expected registry in the mapping, or schema.registry.url in "
            f"{option_name('kafka_config')}",
            field="framing",
            value=words.framing,
        )
    return url


def _registry(settings: Settings, url: str) -> SchemaRegistry:
    file = "" if settings.kafka_config is None else str(settings.kafka_config)
    properties = {**schema_registry_properties(settings), "url": url}
    client = security(kafka_properties(settings), file)
    user, password = client.get("sasl_plain_username"), client.get("sasl_plain_password")
    sasl = None if user is None else (str(user), str(password))
    return SchemaRegistry(registry_settings(properties, sasl=sasl, file=file))


def source_format(words: FormatSettings, file: str) -> RecordFormat:
    """Return what reads a mapped topic's records, which are no V2 requests.

    Raises:
        ConfigError: A schema or descriptor set is missing or wrong.
    """
    is_framed = words.framing == "confluent"
    match words.word:
        case "avro" if is_framed:
            return FramedAvro(words.schema)
        case "avro":
            _need(
                words.schema, "schema", "the file of the Avro schema, or framing confluent", file
            )
            return PlainAvro(words.schema)
        case "protobuf":
            _need(words.descriptors, "descriptors", "the file of a FileDescriptorSet", file)
            _need(words.message, "message", "the full name of the message", file)
            return ProtobufRecords(words.descriptors, words.message, is_framed=is_framed)
        case "raw":
            return RawFormat()
    return JsonFormat()


def _need(value: str | bytes, key: str, expected: str, file: str) -> None:
    if not value:
        raise ConfigError(f"expected {expected}", file=file, field=f"source.{key}")


async def result_format(
    words: FormatSettings, plan: MappingPlan, topic: str, schemas: Schemas | None
) -> RecordFormat:
    """Return what writes a version's results; in Avro with a schema that is made of its outputs.

    Args:
        words: What the mapping says.
        plan: Of the version.
        topic: Of results, for the subject.
        schemas: Where the schema is registered; None where values are not framed.

    Raises:
        ConfigError: The schema is refused.
        LogError: The registry cannot be asked.
    """
    if words.word != "avro":
        return JsonFormat()
    schema = words.schema or result_schema(plan.signature.model_name, plan.result_fields())
    if schemas is None:
        return PlainAvro(schema)
    number = await schemas.register(words.subject or f"{topic}-value", schema)
    return FramedAvro(schema, writes_as=number)
