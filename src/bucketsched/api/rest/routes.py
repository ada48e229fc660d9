"""How a route is added: described for /openapi.json, and with its errors answered in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import InvalidArgument
from . import models
from .errors import JSON, error_response

_REASONS = {
    400: "The request is at fault; `details` names the field.",
    404: "It does not exist.",
    409: "It does not fit what is there.",
    413: "The body is too large.",
    415: "The body is no JSON.",
    503: "Can't be done now: try the same again after Retry-After.",
}


def takes(name: str) -> dict[str, Any]:
    """The description of a body that is JSON of the schema `name`."""
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


class Route(APIRoute):
    """Refuses query parameters that there are none of; whatever is raised becomes an answer."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler."""
        handle = super().get_route_handler()
        known = {parameter.alias for parameter in self.dependant.query_params}
        described = (self.openapi_extra or {}).get("parameters", ())
        families = tuple(parameter["name"].partition("{")[0] for parameter in described)

        async def answer(request: Request) -> Response:
            try:
                if request.scope["query_string"]:
                    _check_query(request, known, families)
                return await handle(request)
            except HTTPException:
                raise
            except RequestValidationError as error:
                return error_response(_argument(error))
            except Exception as error:
                return error_response(error)

        return answer


class Routes:
    """Adds routes to an application."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        app.router.route_class = Route

    def add(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Awaitable[Response]],
        answer: type[BaseModel] | None,
        code: int = 200,
        errors: Sequence[int] = (),
        extra: dict[str, Any] | None = None,
    ) -> None:
        """`answer`: what a success looks like; None: it is text."""
        success: dict[str, Any] = {"model": answer} if answer else {"content": {"text/plain": {}}}
        summary, _, rest = (endpoint.__doc__ or "").partition("\n\n")
        self._app.add_api_route(
            path,
            endpoint,
            methods=[method],
            status_code=code,
            response_model=None,
            response_class=Response,
            responses={
                code: {"description": "Done.", **success},
                **{error: {"description": _REASONS[error], "model": models.ErrorBody} for error in errors},
            },
            operation_id=endpoint.__qualname__.replace("Routes.", "_").lower(),
            summary=summary.strip(),
            description=" ".join(rest.split()),
            openapi_extra=extra,
        )


def _argument(error: RequestValidationError) -> InvalidArgument:
    """A query parameter that is not of its type."""
    first = error.errors()[0]
    return InvalidArgument(str(first["loc"][-1]), str(first["msg"]).replace("Input should be", "must be"))


def _check_query(request: Request, known: set[str], families: tuple[str, ...]) -> None:
    """`families`: beginnings of names, such as "metadata.", that any name may follow."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known and not (name.startswith(families) and name not in families):
            there_are = f"there are {', '.join(sorted(known | set(families)))}" if known else "there are none here"
            raise InvalidArgument(name, f"there is no such query parameter; {there_are}")
        if given.count(name) > 1:
            raise InvalidArgument(name, "is given twice")
