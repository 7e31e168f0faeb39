"""What every failure of the embedded servers has in common."""


class EmbeddedServersError(RuntimeError):
    """The embedded servers cannot run; the message says what to do next."""
