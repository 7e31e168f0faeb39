"""How a worker hears that a job waits. Postgres holds the queue; a doorbell only saves the worker from looking."""

from app.queueing.doorbell import Doorbell
from app.queueing.memory import MemoryDoorbell
from app.queueing.rq import RqDoorbell

__all__ = ["Doorbell", "MemoryDoorbell", "RqDoorbell"]
