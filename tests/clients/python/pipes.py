"""Moves records from topic to topic in transactions, with the offsets, until standard input ends.

    pipes.py (confluent | kafka-python | aiokafka) BOOTSTRAP INPUT GROUP OUTPUT TRANSACTIONAL_ID

Some transactions are aborted at random; see ../README.md. An error that a session does not survive
ends the program, as it would end a service: whoever started it starts it again.
"""

import asyncio
import os
import random
import sys
import threading
import time

BATCH = int(os.environ.get("FENCEPOST_PIPES_BATCH", "200"))
ABORT_PERCENT = 10
TIMEOUT_MS = 60_000
SESSION_MS = 6_000


def end_of_input():
    ended = threading.Event()

    def wait():
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def aborts():
    return random.randrange(100) < ABORT_PERCENT


def say(word, count):
    sys.stdout.write(f"{word}\t{count}\n")
    sys.stdout.flush()


def confluent(bootstrap, source, group, target, transactional_id):
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    common = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        # Rebootstrapping, librdkafka 2.16 may wait for ever for a coordinator that it gave up.
        "metadata.recovery.strategy": "none",
    }
    stop = end_of_input()
    producer = Producer(
        {**common, "transactional.id": transactional_id, "transaction.timeout.ms": TIMEOUT_MS}
    )
    producer.init_transactions(30)
    consumer = Consumer(
        {
            **common,
            "group.id": group,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 200,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([source])

    def rewind():
        committed = consumer.committed(consumer.assignment(), 30)
        # Its seek waits for ever for a partition that is not being read.
        consumer.assign(
            [TopicPartition(p.topic, p.partition, max(p.offset, 0)) for p in committed]
        )

    while not stop.is_set():
        records = [r for r in consumer.consume(BATCH, 0.2) if r.error() is None]
        if not records:
            continue
        producer.begin_transaction()
        try:
            for record in records:
                producer.produce(target, record.value(), partition=record.partition())
            # Of what was consumed, not of the assignment: that may have changed meanwhile.
            ends = {(r.topic(), r.partition()): r.offset() + 1 for r in records}
            offsets = [TopicPartition(t, p, end) for (t, p), end in ends.items()]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
            if aborts():
                producer.abort_transaction(30)
                say("aborted", len(records))
                rewind()
            else:
                producer.commit_transaction(30)
                say("committed", len(records))
        except KafkaException as error:
            print(repr(error), file=sys.stderr)
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
            say("aborted", len(records))
            rewind()
    consumer.close()


def kafka_python(bootstrap, source, group, target, transactional_id):
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import KafkaConnectionError
    from kafka.structs import OffsetAndMetadata

    stop = end_of_input()
    common = {"bootstrap_servers": bootstrap, "reconnect_backoff_ms": 10, "retry_backoff_ms": 50}
    producer = KafkaProducer(
        transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS, **common
    )
    producer.init_transactions()
    consumer = KafkaConsumer(
        source,
        group_id=group,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=200,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **common,
    )
    while not stop.is_set():
        try:
            batches = consumer.poll(timeout_ms=200, max_records=BATCH)
        except KafkaConnectionError as error:
            # The broker is away.
            print(repr(error), file=sys.stderr)
            time.sleep(0.05)
            continue
        if not batches:
            continue
        count = sum(len(records) for records in batches.values())
        producer.begin_transaction()
        for place, records in batches.items():
            for record in records:
                producer.send(target, record.value, partition=place.partition)
        ends = {p: OffsetAndMetadata(r[-1].offset + 1, "", -1) for p, r in batches.items()}
        producer.send_offsets_to_transaction(ends, group)
        if aborts():
            producer.abort_transaction()
            say("aborted", count)
            for place in consumer.assignment():
                committed = consumer.committed(TopicPartition(place.topic, place.partition))
                consumer.seek(place, committed or 0)
        else:
            producer.commit_transaction()
            say("committed", count)
    consumer.close()
    producer.close()


async def aiokafka(bootstrap, source, group, target, transactional_id):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener

    stop = end_of_input()
    # It joins again behind our back, and reads committed offsets without asking for stable ones:
    # those of an open transaction have to be decided before.
    in_transaction = asyncio.Lock()

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked):
            async with in_transaction:
                pass

        async def on_partitions_assigned(self, assigned):
            pass

    common = {"bootstrap_servers": bootstrap, "retry_backoff_ms": 50}
    producer = AIOKafkaProducer(
        transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS, **common
    )
    await producer.start()
    consumer = AIOKafkaConsumer(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=200,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        **common,
    )
    await consumer.start()
    consumer.subscribe([source], listener=Listener())
    while not stop.is_set():
        batches = await consumer.getmany(timeout_ms=200, max_records=BATCH)
        if not batches:
            continue
        async with in_transaction:
            count = sum(len(records) for records in batches.values())
            await producer.begin_transaction()
            for place, records in batches.items():
                for record in records:
                    await producer.send(target, record.value, partition=place.partition)
            ends = {place: records[-1].offset + 1 for place, records in batches.items()}
            await producer.send_offsets_to_transaction(ends, group)
            aborted = aborts()
            if aborted:
                await producer.abort_transaction()
                say("aborted", count)
            else:
                await producer.commit_transaction()
                say("committed", count)
        if aborted:
            # Its own seek_to_committed leaves a partition alone that has no offset yet.
            for place in consumer.assignment():
                consumer.seek(place, await consumer.committed(place) or 0)
    await consumer.stop()
    await producer.stop()


def main(arguments):
    match arguments:
        case ["confluent", *rest] if len(rest) == 5:
            confluent(*rest)
        case ["kafka-python", *rest] if len(rest) == 5:
            kafka_python(*rest)
        case ["aiokafka", *rest] if len(rest) == 5:
            asyncio.run(aiokafka(*rest))
        case _:
            sys.exit(__doc__)


main(sys.argv[1:])
