"""Stands in for the part of kafka-python's fixtures that starts brokers: there is one already."""


class ExternalService:
    def __init__(self, host, port):
        self.host = host
        self.port = port

    def open(self):
        pass

    def close(self):
        pass

    def start(self):
        pass

    def stop(self):
        pass

    def dump_logs(self):
        pass

    def wait_for(self, *_args, **_kwargs):
        return True


class SpawnedService:
    def __init__(self, *_args, **_kwargs):
        raise RuntimeError("the suite is given a broker, and starts none")
