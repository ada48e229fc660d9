"""What goes wrong with a stack."""


class StackError(Exception):
    """A stack or a server can't be brought where it was asked to be; the message is for the person who asked."""
