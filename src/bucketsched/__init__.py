"""bucketsched: a durable, distributed scheduler for delayed tasks."""
