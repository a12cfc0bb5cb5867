"""Codes and reasons as HTTP numbers."""

import json

import pytest
from headrace.schemas import errors
from headrace.schemas.errors import Code, InferError, Reason
from headrace.streams.http_errors import error_response, status_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequest("x"), 400),
        (errors.InferError("x", code=Code.UNKNOWN), 400),
        (errors.InferError("x", code=Code.ALREADY_EXISTS), 400),
        (errors.Cancelled("x"), 400),
        (errors.NotFound("x"), 404),
        (errors.Unavailable("x"), 503),
        (errors.QueueFull("x"), 503),
        (errors.DeadlineExceeded("x"), 503),
        (errors.DeadlineExceeded("x", reason=Reason.DEADLINE_PASSED), 504),
        (errors.Unsupported("x"), 501),
        (errors.MalformedRequest("x"), 500),
        (errors.BackendError("x"), 500),
        (errors.OutOfMemory("x"), 500),
        (errors.TooLarge("x"), 413),
        (errors.InvalidRequest("x", reason=Reason.SEQUENCE_UNKNOWN), 400),
        (errors.InvalidRequest("x", reason=Reason.SEQUENCE_EXPIRED), 400),
        (errors.InvalidRequest("x", reason=Reason.SEQUENCE_LOST), 400),
        (errors.InferError("x", code=Code.INTERNAL, reason=Reason.SEQUENCE_LOST), 400),
    ],
)
def test_R4_PB31_each_kind_has_its_number(error, status):
    assert status_of(error) == status


def test_every_code_and_reason_has_a_number():
    for code in Code:
        for reason in Reason:
            assert 200 <= status_of(InferError("x", code=code, reason=reason)) < 600


def test_PB30_the_body_is_json_and_a_503_says_when_to_come_back():
    response = error_response(errors.QueueFull('a "quoted" text \udcff'))
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    assert response.headers["Content-Type"] == "application/json"
    assert json.loads(response.body)["error"].startswith('a "quoted" text')
    assert "Retry-After" not in error_response(errors.NotFound("x")).headers
