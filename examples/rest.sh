#!/bin/sh
# Tasks over REST, with curl only. In another shell: bucketsched dev
#
#     sh examples/rest.sh [URL]        [http://127.0.0.1:8080]
set -eu
url=${1:-http://127.0.0.1:8080}

# ask METHOD PATH [JSON]: prints the answer; ends where it is an error
ask() {
  curl --silent --show-error --fail-with-body --request "$1" "$url$2" \
    ${3:+--header 'Content-Type: application/json' --data-binary "$3"}
  echo
}

ask GET /health
created=$(ask POST /tasks '{"type": "invoice.remind", "payload": {"invoice": 42}, "delay": "24h"}')
echo "$created"
id=$(echo "$created" | sed 's/.*"task_id":"\([^"]*\)".*/\1/')
ask GET "/tasks/$id"
ask POST "/tasks/$id/cancel"
ask POST /tasks:batch '{"tasks": [
  {"type": "mail", "payload": "one", "delay": "1h30m"},
  {"type": "mail", "payload_base64": "AAEC/w==", "content_type": "image/png", "queue": "no-such-queue"}]}'
