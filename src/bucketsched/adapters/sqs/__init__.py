"""SQS by aiobotocore, which is loaded where the first request is made, beside the event loop."""
