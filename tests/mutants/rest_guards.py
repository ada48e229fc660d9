"""The guards of REST: who may ask, how much, and that a payload stays what it was."""

from __future__ import annotations

from .guards import Guard

TASKS, APPLICATION, SERVER = (
    "tests/unit/test_rest_tasks.py",
    "tests/unit/test_rest_application.py",
    "tests/unit/test_rest_server.py",
)
TEXT, BODIES, GATE, PROTOCOL = (f"api/rest/{name}.py" for name in ("json_text", "bodies", "gate", "protocol"))

REST_GUARDS = [
    Guard(
        "rest-names-are-unique",
        "who reads a payload must not see another value than who has checked it",
        TEXT,
        "    if len(found) != len(pairs):",
        "    if False:",
        (TASKS,),
    ),
    Guard(
        "rest-fields-are-unique",
        "a field that is given twice has no meaning",
        TEXT,
        "        if name in found:",
        "        if False:",
        (TASKS,),
    ),
    Guard(
        "rest-depth-is-bounded",
        "what is taken must be readable by all, whatever their limit on recursion",
        TEXT,
        "    if level:\n        raise",
        "    if False:\n        raise",
        (TASKS,),
    ),
    Guard(
        "rest-no-nan",
        "NaN is no JSON: others could not read the payload",
        TEXT,
        "parse_constant=_no_constant, ",
        "",
        (TASKS,),
    ),
    Guard(
        "rest-no-half-pairs",
        "half of a surrogate pair can't be written as UTF-8",
        TEXT,
        "    if _ESCAPED_SURROGATE.search(written.text):",
        "    if False:",
        (TASKS,),
    ),
    Guard(
        "rest-payloads-are-kept",
        "numbers and order must stay as they were written",
        "api/rest/content.py",
        "    return written.text.encode(), given or JSON",
        "    return __import__('json').dumps(written.value).encode(), given or JSON",
        (TASKS,),
    ),
    Guard(
        "rest-payloads-are-shown-only-as-json",
        "a payload that only says that it is JSON would break the answer around it",
        "api/rest/tasks.py",
        "if is_json_type(body.content_type) and is_json(body.payload):",
        "if is_json_type(body.content_type):",
        (TASKS,),
    ),
    Guard(
        "rest-streamed-bodies-are-bounded",
        "a body need not say its length",
        BODIES,
        "        size += len(part)\n        if size > bytes_max:",
        "        size += len(part)\n        if False:",
        (TASKS,),
    ),
    Guard(
        "rest-bodies-together-are-bounded",
        "many bodies at once would fill the memory",
        BODIES,
        "        if self.held_bytes + size > self._bytes_max:",
        "        if False:",
        (APPLICATION,),
    ),
    Guard(
        "rest-host-is-checked",
        "a web page may reach loopback by a name of its own",
        GATE,
        "        if self._loopback_only and not _names_loopback(host):",
        "        if False:",
        (APPLICATION,),
    ),
    Guard(
        "rest-origin-is-checked",
        "a web page may send requests to loopback",
        GATE,
        '        if origin is not None and origin.partition("://")[2] != host:',
        "        if False:",
        (APPLICATION,),
    ),
    Guard(
        "rest-only-json-is-taken",
        "a browser sends forms and plain text anywhere without asking",
        BODIES,
        '    if kind.strip().lower() != "application/json":',
        "    if False:",
        (TASKS,),
    ),
    Guard(
        "rest-heads-are-bounded",
        "the parser gathers a header without end",
        PROTOCOL,
        "        if self._head_bytes > self.head_bytes_max and",
        "        if False and",
        (SERVER,),
    ),
    Guard(
        "rest-heads-are-timed",
        "connections that never say anything would use up all there are",
        PROTOCOL,
        "        self._head_timer = self.loop.call_later(self.head_s_max, self.transport.close)",
        "        self._head_timer = None",
        (SERVER,),
    ),
    Guard(
        "rest-signals-stay-the-process's",
        "uvicorn would take SIGTERM, and nothing would be handed over",
        "api/rest/server.py",
        "        @contextmanager\n        def capture_signals",
        "        @contextmanager\n        def capture_no_signals",
        (SERVER,),
    ),
]
