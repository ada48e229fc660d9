"""The way in over HTTP: JSON, described by OpenAPI 3.1 at /openapi.json.

    gate         ASGI: who may ask at all, and how many at a time
    application  FastAPI, the routes, the document
    bodies       a request's body, bounded in size, time and memory; `json_text` is the strict parser behind it
    models       what bodies look like: the one description, for parsing and for the document
    tasks, changes, queues, health   the routes; `content`: what creates and updates have in common
    errors       errors as answers
    server       listening, within the process's event loop

A route turns JSON into core types, calls a use case of `bucketsched.service`, and turns the result back; what is
allowed is decided by `core.validation`, as for every other way in. FastAPI and uvicorn are loaded by `application` and
`server` only, in a thread, once the process has something to serve: they take a quarter of a second of CPU.
"""
