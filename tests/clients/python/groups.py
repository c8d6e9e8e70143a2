"""A member of a consumer group through kafka-python or aiokafka, until standard input ends.

    groups.py (kafka-python | aiokafka) BOOTSTRAP TOPIC GROUP STRATEGY > LINES

Lines are those of ../README.md. STRATEGY: range, roundrobin, sticky.
"""

import asyncio
import sys
import threading
import time

COMMON = {
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 200,
    "retry_backoff_ms": 50,
}
BATCH = 200


def say(lines):
    # Whole lines at once, so that a kill leaves no half of one behind the next.
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()


def say_assigned(partitions):
    numbers = ",".join(str(p.partition) for p in partitions)
    say([f"assigned\t{time.time_ns() // 1_000_000}\t{numbers}\n".encode()])


def say_records(batches):
    """Prints what came, says what will be committed, and returns that."""
    lines, ends = [], {}
    for place, records in batches.items():
        for record in records:
            head = f"record\t{record.partition}\t{record.offset}\t".encode()
            lines.append(head + record.value + b"\n")
            ends[place] = record.offset + 1
    lines += [f"commit\t{place.partition}\t{end}\n".encode() for place, end in ends.items()]
    say(lines)
    return ends


def say_committed(ends):
    now = time.time_ns() // 1_000_000
    say([f"committed\t{now}\t{place.partition}\t{end}\n".encode() for place, end in ends.items()])


def end_of_input():
    ended = threading.Event()

    def wait():
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def kafka_python(bootstrap, topic, group, strategy):
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaConnectionError, KafkaError
    from kafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            pass

        def on_partitions_assigned(self, assigned):
            say_assigned(assigned)

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    stop = end_of_input()
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[assignors[strategy]],
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=100,
        **COMMON,
    )
    consumer.subscribe([topic], listener=Listener())
    while not stop.is_set():
        try:
            batches = consumer.poll(timeout_ms=50, max_records=BATCH)
        except KafkaConnectionError as error:
            # The broker is away.
            print(repr(error), file=sys.stderr)
            time.sleep(0.05)
            continue
        if not batches:
            continue
        ends = say_records(batches)
        try:
            consumer.commit({p: OffsetAndMetadata(end, "", -1) for p, end in ends.items()})
        except KafkaError as error:
            # Who reads on from the last commit reads these again.
            print(repr(error), file=sys.stderr)
        else:
            say_committed(ends)
    consumer.close()


async def aiokafka(bootstrap, topic, group, strategy):
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, revoked):
            pass

        def on_partitions_assigned(self, assigned):
            say_assigned(assigned)

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    stop = end_of_input()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[assignors[strategy]],
        **COMMON,
    )
    while True:
        try:
            await consumer.start()
            break
        except KafkaError as error:
            # It began while the broker was away.
            print(repr(error), file=sys.stderr)
            await asyncio.sleep(0.1)
    consumer.subscribe([topic], listener=Listener())
    while not stop.is_set():
        batches = await consumer.getmany(timeout_ms=50, max_records=BATCH)
        if not batches:
            continue
        ends = say_records(batches)
        try:
            await consumer.commit(ends)
        except KafkaError as error:
            print(repr(error), file=sys.stderr)
        else:
            say_committed(ends)
    await consumer.stop()


def main(arguments):
    match arguments:
        case ["kafka-python", *rest] if len(rest) == 4:
            kafka_python(*rest)
        case ["aiokafka", *rest] if len(rest) == 4:
            asyncio.run(aiokafka(*rest))
        case _:
            sys.exit(__doc__)


main(sys.argv[1:])
