"""Generated from proto/ by tools/generate_stubs.py; don't edit."""
