"""What goes wrong with the node itself, in a sentence for the person who started it."""


class LocalnetFailed(Exception):
    pass
