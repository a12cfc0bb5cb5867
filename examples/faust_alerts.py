"""Raises an alert when a meter's total grows too fast: a Faust app that windows the results of a sequence model.

The model is `total`, the accumulator of the README's section "Sequences". A meter is a sequence, its readings are the
steps, and each result is its total so far. The first result of a meter by which its total has grown by more than 100
within a minute raises an alert. With `pip install 'headrace[faust]'`, in three terminals:

    headrace serve examples/models
    python examples/faust_alerts.py worker --without-web
    python examples/faust_alerts.py feed meter-7 10 60 30 50
"""

import os

import faust
import numpy as np
from faust.cli import argument
from headrace.schemas.errors import InferError
from headrace.schemas.infer import InferRequest
from headrace.schemas.tensor import Tensor
from headrace.streams.client import Answer
from headrace.streams.deduplicate import Deduplicator
from headrace.streams.faust_pipeline import Pipeline, app_settings

WINDOW_S = 60
LIMIT = 100
PROPERTIES = {
    "bootstrap.servers": os.environ.get("HEADRACE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
}


class Alert(faust.Record):
    meter: str
    grown: int
    total: int


app = faust.App("meter-alerts", **app_settings(PROPERTIES, partitions=4))
models = Pipeline(app, PROPERTIES)
alerts = app.topic("meter-alerts", key_type=str, value_type=Alert)
windows = app.Table("windows", default=dict).tumbling(WINDOW_S, expires=10 * WINDOW_S)
once = Deduplicator()  # at least once, a result may come twice


@app.agent(models.results("total"))
async def watch(results):
    async for event in results.events():
        if isinstance(event.value, InferError) or once.is_repeat(event.message):
            continue
        meter, total = event.key.decode(), Answer(event.value)["sum"].item()
        window = windows[meter].current() or {"first": total, "is_raised": False}
        grown = total - window["first"]
        if grown > LIMIT and not window["is_raised"]:
            window["is_raised"] = True
            await alerts.send(key=meter, value=Alert(meter=meter, grown=grown, total=total))
            print(f"{meter} has grown by {grown} to {total}")
        windows[meter] = window


@app.command(argument("meter"), argument("readings", nargs=-1, type=int))
async def feed(_self, meter, readings):
    """Send the readings of a meter, which begins anew."""
    requests = models.requests("total")
    for number, reading in enumerate(readings):
        x = Tensor.from_numpy("x", np.array([[reading]], np.int32))
        step = InferRequest((x,), sequence_id=meter, sequence_start=number == 0)
        await (await requests.send(value=step))


if __name__ == "__main__":
    app.main()
