"""Webhooks over HTTP by aiohttp: names are looked up once a connection, and every address must be allowed."""
