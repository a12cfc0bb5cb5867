"""Command-line options made from the fields of `Settings`, so that nothing is declared twice.

`with_settings` gives a command one option per named field and hands it the finished `Settings`; values stay
text until `load_settings` checks them, so an error reads the same wherever the value came from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer
from headrace.deploy.settings import Settings, load_settings, option_name, variable_name
from pydantic.fields import FieldInfo

Result = TypeVar("Result")

COMMON = ("config", "log_level")
BROKER = ("bootstrap_servers", "kafka_config", "topic_prefix")
METAVARS = {int: "INTEGER", float: "NUMBER", bool: "BOOLEAN", str: "TEXT"}


def with_settings(
    *fields: str,
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Make a decorator that adds options for these fields and passes ``settings`` to the command.

    The command's own parameters stay; its parameter ``settings`` is replaced by the options.
    """

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        own = inspect.signature(command, eval_str=True)
        parameters = [p for name, p in own.parameters.items() if name != "settings"]
        parameters += [_parameter(name, Settings.model_fields[name]) for name in fields]

        @wraps(command)
        def run(**values: Any) -> Result:
            given = {name: values.pop(name) for name in fields}
            settings = load_settings(
                {k: v for k, v in given.items() if v not in (None, [], False)}
            )
            return command(settings=settings, **values)

        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by typer
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__doc__ = _unbroken(command.__doc__ or "")
        return run

    return decorate


def _unbroken(text: str) -> str:
    """Join the lines of each paragraph: typer keeps their breaks, wherever the terminal breaks them itself."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.split("\n"))
        for paragraph in paragraphs
    )


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return a keyword parameter that typer turns into the option of a field."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    is_flag = bool(extra.get("flag"))
    is_list = field.default == ()
    default: object = False if is_flag else None
    option = typer.Option(
        option_name(name),
        help=_help(name, field),
        metavar=None if is_flag else _metavar(field),
        show_default=False,
        rich_help_panel=str(extra.get("panel", "Options")),
    )
    kind: Any = bool if is_flag else (list[str] | None if is_list else str | None)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def _metavar(field: FieldInfo) -> str:
    if isinstance(field.annotation, type):
        return METAVARS.get(field.annotation, "TEXT")
    return "PATH" if "Path" in str(field.annotation) else "TEXT"


def _help(name: str, field: FieldInfo) -> str:
    default = field.default
    if isinstance(default, bool):
        shown = str(default).lower()
    elif default in (None, "", ()):
        shown = "none"
    else:
        shown = str(default)
    return f"{field.description} (default: {shown}; {variable_name(name)})"
