"""`swarmkeep doctor`: could a server start here, and with which settings."""


def register(app):
    pass
