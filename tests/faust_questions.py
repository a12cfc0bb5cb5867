"""A Faust app for tests: its agent asks models, and writes how each call went onto a topic.

    python tests/faust_questions.py --datadir FOLDER worker --without-web

A question is JSON: ``model``, ``x``, ``timeout_s``. An answer says the same ``number``, and ``y`` or the error's
``reason``; ``late`` is the client's count of late replies.
"""

import os

import faust
from headrace.schemas.errors import InferError
from headrace.streams.embedded import PROPERTIES
from headrace.streams.faust_pipeline import Pipeline, app_settings
from headrace.streams.topology import Topology

PREFIX = os.environ["PREFIX"]
KAFKA = {**PROPERTIES, "bootstrap.servers": os.environ["HEADRACE_BOOTSTRAP_SERVERS"]}

app = faust.App(PREFIX, **app_settings(KAFKA, partitions=1))
models = Pipeline(app, KAFKA, Topology(prefix=PREFIX), max_in_flight=4)
questions = app.topic(f"{PREFIX}.questions")
answers = app.topic(f"{PREFIX}.told")


@app.agent(questions, concurrency=4)
async def answer(asked):
    async for question in asked:
        told = {"number": question["number"]}
        try:
            found = await models.infer(
                question["model"], {"x": question["x"]}, timeout_s=question["timeout_s"]
            )
            told["y"] = found["y"].tolist()
        except InferError as error:
            told["reason"] = error.reason
        told["late"] = (await models.client()).late
        await answers.send(value=told)


if __name__ == "__main__":
    app.main()
